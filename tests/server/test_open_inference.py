"""The Open Inference Protocol: JSON and binary tensors, as Triton's client sends."""

import json

import numpy as np
import pytest

URL = "/v2/models/echo"
NUMBERS = {"name": "numbers", "shape": [1, 2], "datatype": "FP32"}
TEXTS = {"name": "inputs", "shape": [2], "datatype": "BYTES", "data": ["ab", "c"]}


def infer(client, body, status=200, **options):
    response = client.post(f"{URL}/infer", json=body, **options)
    assert response.status_code == status, response.text
    return response.json()


def test_what_the_server_and_model_are(client):
    assert client.get("/v2").json()["extensions"] == ["binary_tensor_data"]
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get(f"{URL}/ready").json() == {"name": "echo", "ready": True}
    found = client.get(URL).json()
    assert found["versions"] == ["7"]
    assert found["inputs"] == [{"name": "inputs", "datatype": "BYTES", "shape": [-1]}]
    assert client.get(f"{URL}/versions/8").status_code == 404


def test_tensors_of_json(client):
    found = infer(client, {"id": "x", "inputs": [TEXTS]})
    assert (found["id"], found["model_name"], found["model_version"]) == (
        *("x", "echo", "7"),
    )
    by_name = {x["name"]: x for x in found["outputs"]}
    assert by_name["outputs"] == {
        "name": "outputs",
        "datatype": "BYTES",
        "shape": [2],
        "data": ["AB", "C"],
    }
    assert by_name["scores"]["data"] == [-2.0, -1.0]
    column = TEXTS | {"shape": [2, 1], "data": [["ab"], ["c"]]}
    assert infer(client, {"inputs": [column]})["outputs"] == found["outputs"]
    wanted = {"inputs": [TEXTS], "outputs": [{"name": "scores"}]}
    assert [x["name"] for x in infer(client, wanted)["outputs"]] == ["scores"]
    length = {"name": "max_length", "shape": [1], "datatype": "INT32", "data": [1]}
    body = {"inputs": [TEXTS, length], "parameters": {"signature_name": "generate"}}
    assert infer(client, body)["outputs"][0]["data"] == ["A", "C"]


def test_tensors_of_bytes(client):
    numbers = np.array([[1, 2], [3, 4]], "<f4")
    tensor = {"name": "numbers", "shape": [2, 2], "datatype": "FP32"}
    tensor["parameters"] = {"binary_data_size": numbers.nbytes}
    body = {
        "inputs": [tensor],
        "parameters": {"signature_name": "vectors", "binary_data_output": True},
    }
    text = json.dumps(body).encode()
    header = "Inference-Header-Content-Length"
    response = client.post(
        f"{URL}/infer",
        content=text + numbers.tobytes(),
        headers={header: str(len(text))},
    )
    assert response.status_code == 200, response.text
    size = int(response.headers[header])
    found = json.loads(response.content[:size])
    assert found["outputs"][0]["parameters"] == {"binary_data_size": 8}
    values = np.frombuffer(response.content[size:], "<f4")
    np.testing.assert_array_equal(values, [3, 7, 1, 2, 3, 4])


@pytest.mark.filterwarnings("error")  # They would be lines of the log.
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "a list of inputs"),
        ({"inputs": []}, "has no inputs"),
        ({"inputs": [3]}, "an object with a name"),
        ({"inputs": [TEXTS | {"name": "x"}]}, "no input 'x'"),
        ({"inputs": [TEXTS, TEXTS]}, "given twice"),
        ({"inputs": [TEXTS | {"datatype": "FP32"}]}, "must be BYTES"),
        ({"inputs": [TEXTS | {"shape": [3]}]}, "a list of 3 values"),
        ({"inputs": [TEXTS | {"shape": [9]}]}, "has 9 rows. The most: 8"),
        ({"inputs": [TEXTS | {"shape": [2, 2]}]}, "must be [rows]"),
        ({"inputs": [TEXTS | {"shape": [-1]}]}, "must be a list of sizes"),
        ({"inputs": [TEXTS | {"shape": 2}]}, "must be a list of sizes"),
        ({"inputs": [TEXTS | {"data": "ab"}]}, "a list of 2 values"),
        ({"inputs": [TEXTS | {"data": ["a", 3]}]}, "inputs must be a text"),
        (
            {"inputs": [TEXTS | {"parameters": {"binary_data_size": 9}}]},
            "do not have its shape",
        ),
        (
            {
                "inputs": [NUMBERS | {"data": [1e300, 1]}],
                "parameters": {"signature_name": "vectors"},
            },
            "numbers must be finite",
        ),
        ({"inputs": [TEXTS], "outputs": [{"name": "x"}]}, "There is no output 'x'"),
        ({"inputs": [TEXTS], "outputs": 3}, "There is no output"),
        ({"inputs": [TEXTS], "parameters": 3}, "parameters must be an object"),
    ],
)
def test_mistakes(client, body, message):
    assert message in infer(client, body, 422)["error"]


def test_a_wrong_header_of_binary_tensors(client):
    for value in ("x", "99999", "-1"):
        headers = {"Inference-Header-Content-Length": value}
        assert "must be the bytes" in infer(client, {}, 400, headers=headers)["error"]
