"""The description of the server, and requests that are generated from it."""

import hypothesis
import jsonschema
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks as conformance

from remixer_tf.server.limits import Limits
from tests.server.conftest import listening, of_echo


def test_every_route_is_described(client):
    found = client.get("/openapi.json").json()
    routes = {
        (route.name.replace("NAME", "{name}").replace("VERSION", "{version}"), method)
        for route in client.app._router.routes
        for method in route.methods - {"HEAD"}
        if route.name not in ("/", "/FILE")
    }
    described = {
        (path, method.upper())
        for path, methods in found["paths"].items()
        for method in methods.keys() - {"parameters"}
    }
    assert routes == described


def test_answers_are_as_described(client):
    paths = client.get("/openapi.json").json()["paths"]
    bodies = {
        "/generate": [{"inputs": "a"}, {"inputs": ["a", "b"]}],
        "/score": [{"inputs": "a", "targets": "b"}],
        "/v1/completions": [{"model": "echo", "prompt": "a", "logprobs": 1}],
    }
    for path, requests in bodies.items():
        about = paths[path]["post"]
        for body in requests:
            schema = about["requestBody"]["content"]["application/json"]["schema"]
            jsonschema.validate(body, schema)
            response = client.post(path, json=body)
            answer = about["responses"]["200"]["content"]["application/json"]
            jsonschema.validate(response.json(), answer["schema"])
        response = client.post(path, json={})
        answer = about["responses"]["422"]["content"]["application/json"]
        jsonschema.validate(response.json(), answer["schema"])


@pytest.mark.slower
def test_requests_made_from_the_description():
    """schemathesis: no 5xx, and answers of the described forms."""
    limits = Limits(max_rows=8, max_characters=500)
    with listening([of_echo(limits=limits)], limits) as url:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        operations = [*schema.get_all_operations()]
        assert len(operations) > 20
        for operation in operations:
            check(operation.ok())


def check(operation):
    """Sends generated requests of an operation, and checks the answers."""
    checks = [
        not_a_server_error,
        conformance.status_code_conformance,
        conformance.content_type_conformance,
        conformance.response_schema_conformance,
    ]

    @hypothesis.given(case=operation.as_strategy())
    @hypothesis.settings(
        max_examples=40,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[*hypothesis.HealthCheck],
        phases=[hypothesis.Phase.generate],
    )
    def send(case):
        case.call_and_validate(checks=checks)

    send()
