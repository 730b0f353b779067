"""Calls, health, metrics, and what is refused, by a model that needs no TensorFlow."""

import base64
import json

import pytest

from remixer_tf.server.limits import Limits
from tests.server.conftest import LIMITS, of_echo, serving


def test_the_forms_of_one_and_of_several(client):
    one = client.post("/generate", json={"inputs": "abc", "max_length": 2})
    about = {"model": "echo", "version": "7"}
    assert one.status_code == 200
    answer = {"outputs": "AB", "scores": -2.0, "trimmed": False}
    assert one.json() == about | answer
    several = client.post("/generate", json={"inputs": ["abc"], "model": "echo"})
    assert several.json()["outputs"] == ["ABC"]
    scored = client.post("/score", json={"inputs": "a", "targets": "bc"}).json()
    assert scored["scores"] == -2.0 and scored["num_tokens"] == 2
    assert scored["tokens"][1] == {"text": "c", "log_probability": -1.0}


def test_a_batch_that_fails_is_told_though_its_halves_answer():
    with serving([of_echo()]) as client:
        found = client.post("/generate", json={"inputs": ["alone", "abc"]})
        assert found.json()["outputs"] == ["ALONE", "ABC"]
        assert "echo: KeyError of 2 texts together, now in halves" in client.said
        line = 'remixer_tf_failed_batches_total{model="echo"} 1.0\n'
        assert line in client.get("/metrics").text


def test_health_page_and_metrics():
    with serving([of_echo()]) as client:
        check_metrics(client)


def check_metrics(client):
    client.post("/generate", json={"inputs": ["abc", "de"]})
    client.post("/generate", json={"inputs": 3})
    client.get("/no/such/route")
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/readyz").text == "ready\n"
    assert "remixer_tf" in client.get("/").text
    metrics = client.get("/metrics").text
    for line in (
        'remixer_tf_requests_total{code="200",route="/generate"} 1.0',
        'remixer_tf_requests_total{code="422",route="/generate"} 1.0',
        'remixer_tf_requests_total{code="404",route="unknown"} 1.0',
        'remixer_tf_rows_total{model="echo",signature="generate"} 2.0',
        'remixer_tf_tokens_total{direction="written",model="echo"} 5.0',
        'remixer_tf_batch_rows_bucket{le="2.0",model="echo"} 1.0',
        'remixer_tf_queue_rows{model="echo"} 0.0',
        'remixer_tf_compilations_after_warm_up_total{model="echo"} 0.0',
        'remixer_tf_model{model="echo",version="7"} 1.0',
    ):
        assert f"{line}\n" in metrics, line


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"", 400, "no JSON"),
        (b"\xff", 400, "not UTF-8"),
        (b"{", 400, "no JSON"),
        (b'{"inputs": NaN}', 400, "NaN is no number"),
        (b'{"inputs": "a", "temperature": 1e999}', 422, "temperature must be a number"),
        (b"[" * 5000, 400, "nested too deeply"),
        (b'{"inputs": ' + b"[" * 30 + b"]" * 30 + b"}", 400, "nested too deeply"),
        (b'"a"', 422, "must be a JSON object"),
        (b"{}", 422, "The field 'inputs' is missing"),
        (b'{"inputs": []}', 422, "inputs has 0 texts. Expected: 1 to 8"),
        (b'{"inputs": [1]}', 422, "inputs[0] must be a text"),
        (b'{"inputs": {"b64": "?"}}', 422, "b64 is no base64"),
        (b'{"inputs": "\\ud800"}', 422, "unpaired surrogate"),
        (b'{"inputs": "a", "input": 1}', 422, "Nearest: inputs"),
        (b'{"inputs": "a", "max_length": 0}', 422, "an integer from 1 to 65536"),
        (b'{"inputs": "a", "max_length": true}', 422, "max_length must be an integer"),
        (b'{"inputs": "a", "beams": 99}', 422, "beams must be an integer from 1 to 16"),
        (b'{"inputs": "a", "on_long": "x"}', 422, "must be warn or raise"),
        (b'{"inputs": "a", "model": "ecko"}', 404, "Nearest: echo"),
        (b'{"inputs": "%s"}' % (b"a" * 501), 422, "has 501 characters"),
        (b'{"inputs": "mistake"}', 422, "echo has no such text"),
        (b'{"inputs": "bug"}', 500, "could not compute"),
        (b" " * 20_001, 413, "at most 20,000 bytes"),
    ],
)
def test_mistakes_are_one_sentence(client, body, status, message):
    response = client.post("/generate", content=body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert message in error and "\n" not in error and "somebody" not in error
    assert not any("somebody" in line for line in client.said)


def test_texts_of_bytes_have_the_limit_of_texts(client):
    long = base64.b64encode("é".encode() * 501).decode()
    fits = base64.b64encode("é".encode() * 500).decode()
    of_bytes = (501 * "é").encode()
    tensor = {"name": "inputs", "shape": [1], "datatype": "BYTES"}
    tensor["parameters"] = {"binary_data_size": len(of_bytes) + 4}
    head = json.dumps({"inputs": [tensor]}).encode()
    for path, body, headers in (
        ("/generate", json.dumps({"inputs": {"b64": long}}).encode(), {}),
        (
            "/v1/models/echo:predict",
            b'{"instances": [{"b64": "%s"}]}' % long.encode(),
            {},
        ),
        (
            "/v2/models/echo/infer",
            head + len(of_bytes).to_bytes(4, "little") + of_bytes,
            {"Inference-Header-Content-Length": str(len(head))},
        ),
    ):
        response = client.post(path, content=body, headers=headers)
        assert response.status_code == 422, response.text
        assert response.json()["error"].endswith("501 characters. The most: 500.")
    found = client.post("/generate", json={"inputs": {"b64": fits}})
    assert found.status_code == 200, found.text


def test_a_model_without_matrices(client):
    response = client.post("/observe", json={"inputs": "a"})
    assert response.status_code == 422
    assert response.json()["error"] == "The model echo shows no matrices."
    (model,) = client.get("/v1/models").json()["data"]
    assert model["observes"] is False
    assert model["inputs"]["score"] == ["inputs", "targets"]


def test_unknown_routes_and_methods(client):
    for path in ("/generat", "/v1/x", "/../etc/passwd", "/page/index.html"):
        assert client.get(path).status_code == 404
        assert client.get(path).json()["error"].startswith("There is nothing at")
    for method in ("DELETE", "GET"):
        response = client.request(method, "/generate")
        assert response.status_code == 405 and response.headers["Allow"] == "POST"
        assert response.json()["error"] == "'/generate' takes POST."


def test_a_token_is_asked_for():
    with serving([of_echo()], token="correct horse") as client:
        body = {"json": {"inputs": "a"}}
        for value in (None, "", "Bearer", "Bearer wrong", "Basic correct horse", "é"):
            headers = {} if value is None else {"Authorization": value.encode()}
            response = client.post("/generate", headers=headers, **body)
            assert response.status_code == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"
        error = client.get("/v1/models").json()["error"]
        assert error["type"] == "authentication_error"
        headers = {"Authorization": "Bearer correct horse"}
        assert client.post("/generate", headers=headers, **body).status_code == 200
        assert client.get("/metrics").status_code == 401
        for path in ("/", "/healthz", "/readyz", "/v2/health/ready"):
            assert client.get(path).status_code == 200


def test_an_answer_that_takes_long_is_given_up():
    limits = Limits(timeout=1)
    with serving([of_echo(limits=limits)], limits) as client:
        served = client.app.models.get("echo")
        served.may_compute.clear()
        response = client.post("/generate", json={"inputs": "a"})
        served.may_compute.set()
        assert response.status_code == 408
        assert response.json()["error"].startswith("No answer in 1 s.")


def test_models_are_named():
    with serving([of_echo("one"), of_echo("two")]) as client:
        response = client.post("/generate", json={"inputs": "a"})
        assert response.json()["error"] == "Name one of the models: one, two."
        response = client.post("/generate", json={"inputs": "a", "model": "two"})
        assert response.json()["model"] == "two"
        assert len(client.get("/v1/models").json()["data"]) == 2


def test_while_a_model_is_loaded():
    from remixer_tf.server.models import Models

    models = Models([of_echo()], print)
    with pytest.raises(Exception, match="is being loaded") as raised:
        models.get("echo")
    assert raised.value.status == 503 and raised.value.headers == {"Retry-After": "5"}
    assert LIMITS.max_rows == 8
