"""TensorFlow Serving's REST interface: rows, columns, signatures, metadata."""

import base64

import pytest

URL = "/v1/models/echo"


def predict(client, body, status=200, url=URL):
    response = client.post(f"{url}:predict", json=body)
    assert response.status_code == status, response.text
    return response.json()


def test_rows_and_columns(client):
    row = {"outputs": "AB", "scores": -2.0, "trimmed": False}
    assert predict(client, {"instances": ["ab"]}) == {"predictions": [row]}
    assert predict(client, {"instances": [{"inputs": "ab"}]}) == {"predictions": [row]}
    encoded = {"b64": base64.b64encode(b"ab").decode()}
    for rows in ([encoded], [{"inputs": encoded}]):
        assert predict(client, {"instances": rows}) == {"predictions": [row]}
    columns = {"outputs": ["AB", "C"], "scores": [-2.0, -1.0], "trimmed": [False] * 2}
    for inputs in (["ab", "c"], {"inputs": ["ab", "c"]}):
        assert predict(client, {"inputs": inputs}) == {"outputs": columns}
    assert predict(client, {"inputs": "ab"})["outputs"]["outputs"] == ["AB"]


def test_a_signature_with_settings(client):
    body = {"signature_name": "generate", "inputs": {"inputs": ["abc", "def"]}}
    body["inputs"]["max_length"] = 2  # one number for all
    assert predict(client, body)["outputs"]["outputs"] == ["AB", "DE"]
    body["inputs"]["max_length"] = [1, 3]
    assert predict(client, body)["outputs"]["outputs"] == ["A", "DEF"]
    rows = [{"inputs": "abc", "max_length": 1}, {"inputs": "abc"}]
    body = {"signature_name": "generate", "instances": rows}
    found = predict(client, body)["predictions"]
    assert [x["outputs"] for x in found] == ["A", "ABC"]


def test_one_output_has_no_name(client):
    body = {"signature_name": "score"}
    pair = {"inputs": "a", "targets": "bcd"}
    assert predict(client, body | {"instances": [pair]}) == {"predictions": [-3.0]}
    inputs = {name: [text] for name, text in pair.items()}
    assert predict(client, body | {"inputs": inputs}) == {"outputs": [-3.0]}
    body = {"signature_name": "vectors", "instances": [[1, 2], [3, 4.5]]}
    found = predict(client, body)["predictions"]
    assert found[1] == {"sums": 7.5, "numbers": [3.0, 4.5]}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "either instances, which are rows, or inputs"),
        ({"instances": [], "inputs": []}, "either instances"),
        ({"instances": []}, "0 rows. Expected: 1 to 8"),
        ({"instances": ["a"] * 9}, "9 rows"),
        ({"instances": "a"}, "instances must be a list"),
        ({"instances": [{"input": "a"}]}, "Nearest: inputs"),
        ({"instances": [{}]}, "The input 'inputs' is missing"),
        ({"instances": [7]}, "inputs must be a text"),
        ({"instances": ["a"], "signature": ""}, "no field 'signature'"),
        ({"instances": ["a"], "signature_name": "no"}, "has no signature 'no'"),
        ({"instances": ["a"], "signature_name": "classify"}, "has no classes"),
        ({"instances": ["a"], "signature_name": 3}, "signature_name must be a text"),
        ({"signature_name": "score", "instances": ["a"]}, "inputs, targets"),
        (
            {"signature_name": "score", "inputs": {"inputs": ["a"], "targets": []}},
            "targets has 0 rows",
        ),
        (
            {
                "signature_name": "generate",
                "instances": [{"inputs": "a", "max_length": 17}],
            },
            "max_length must be 1 to 16. Received: 17",
        ),
        (
            {
                "signature_name": "generate",
                "instances": [{"inputs": "a", "max_length": 2**40}],
            },
            "max_length must be a number of type int32",
        ),
        (
            {"signature_name": "vectors", "instances": [[1], [2]]},
            "numbers must be an array of [2] of type float32",
        ),
        ({"signature_name": "vectors", "instances": [[1, "x"]]}, "numbers must be an"),
        ({"signature_name": "vectors", "instances": [[[1], [1, 2]]]}, "numbers must"),
        ({"signature_name": "vectors", "instances": [[1e39, 1]]}, "must be finite"),
    ],
)
def test_mistakes(client, body, message):
    assert message in predict(client, body, 422)["error"]


def test_status_and_metadata(client):
    state = client.get(URL).json()
    assert state["model_version_status"][0]["version"] == "7"
    assert state["model_version_status"][0]["state"] == "AVAILABLE"
    found = client.get(f"{URL}/metadata").json()
    assert found["model_spec"] == {
        "name": "echo",
        "signature_name": "",
        "version": "7",
    }
    signatures = found["metadata"]["signature_def"]["signature_def"]
    assert signatures["vectors"]["inputs"]["numbers"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {
            "dim": [{"size": "-1", "name": ""}, {"size": "2", "name": ""}],
            "unknown_rank": False,
        },
        "name": "numbers",
    }
    assert client.get("/v1/models/no").status_code == 404
    assert client.get(f"{URL}/versions/7").status_code == 200
    assert client.get(f"{URL}/versions/8").status_code == 404
    body = {"instances": ["a"]}
    predict(client, body, url=f"{URL}/versions/7")
    predict(client, body, 404, url=f"{URL}/versions/8")
