"""The description of the server's routes, in OpenAPI's form."""

import remixer_tf
from remixer_tf.server import calls, completions
from remixer_tf.server.fields import object_schema
from remixer_tf.server.requests import json_response

_TEXT, _NUMBER = {"type": "string"}, {"type": ["number", "null"]}
_NAMED = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
_VERSION = {"name": "version", "in": "path", "required": True, "schema": _TEXT}
_ERROR = {
    "type": "object",
    "properties": {"error": _TEXT},
    "required": ["error"],
    "additionalProperties": False,
}
_OPENAI_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": "null"},
                "code": {"type": "null"},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_MODEL = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "object": {"enum": ["model"]},
        "created": {"type": "integer"},
        "owned_by": _TEXT,
        "version": _TEXT,
        "calls": {"type": "array", "items": _TEXT},
        "inputs": {"type": "object"},
        "observes": {"type": "boolean"},
    },
    "required": ["id", "object", "created", "owned_by", "version", "calls", "inputs"],
}


def _any_of(schema):
    """The schema of a value, or of a list where the request has a list."""
    return {"anyOf": [schema, {"type": "array", "items": schema}]}


def _answer(**properties):
    about = {"model": _TEXT, "version": _TEXT}
    return {
        "type": "object",
        "properties": about | properties,
        "required": [*about, *properties],
    }


_TEXTS = {"anyOf": [_TEXT, {"type": "array", "items": _any_of(_TEXT)}]}
_NUMBERS = {"anyOf": [_NUMBER, {"type": "array", "items": _any_of(_NUMBER)}]}
_ANSWERS = {
    "generate": _answer(
        outputs=_TEXTS, scores=_NUMBERS, trimmed=_any_of({"type": "boolean"})
    ),
    "score": _answer(
        scores=_any_of(_NUMBER),
        num_tokens=_any_of({"type": "integer"}),
        greedy=_any_of({"type": "boolean"}),
        trimmed=_any_of({"type": "boolean"}),
    ),
    "classify": _answer(
        labels=_any_of({"type": ["string", "integer"]}),
        probability=_any_of(_NUMBER),
        probabilities={"type": "array"},
    ),
    "embed": _answer(embeddings={"type": "array"}),
    "answer": _answer(outputs=_any_of(_TEXT)),
    "observe": _answer(
        tokens={"type": "object"}, layers={"type": "array"}, trimmed={"type": "boolean"}
    ),
}
_PREDICT = {
    "type": "object",
    "properties": {
        "instances": {"type": "array", "description": "rows"},
        "inputs": {"description": "columns"},
        "signature_name": {"type": ["string", "null"]},
    },
    "additionalProperties": False,
}
_TENSOR = {
    "type": "object",
    "properties": {
        "name": _TEXT,
        "shape": {"type": "array", "items": {"type": "integer"}},
        "datatype": _TEXT,
        "data": {"type": "array"},
        "parameters": {"type": "object"},
    },
    "required": ["name", "shape", "datatype"],
}
_INFER = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "parameters": {"type": "object"},
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["inputs"],
}
_INFERRED = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "model_name": _TEXT,
        "model_version": _TEXT,
        "outputs": {"type": "array", "items": _TENSOR},
    },
    "required": ["model_name", "model_version", "outputs"],
}
_COMPLETION = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "object": {"enum": ["text_completion"]},
        "created": {"type": "integer"},
        "model": _TEXT,
        "choices": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "index": {"type": "integer"},
                    "text": _TEXT,
                    "logprobs": {"type": ["object", "null"]},
                    "finish_reason": {"enum": ["stop", "length"]},
                },
                "required": ["index", "text", "logprobs", "finish_reason"],
            },
        },
        "usage": {"type": ["object", "null"]},
    },
    "required": ["id", "object", "created", "model", "choices", "usage"],
}


def describe(limits, has_token):
    """Returns the description, a dictionary."""
    paths = {
        "/healthz": _get("Whether the process answers", plain=True),
        "/readyz": _get("Whether all models answer", plain=True),
        "/metrics": _get("Counters for Prometheus", plain=True),
        "/openapi.json": _get("This description", {"type": "object"}),
        "/v1/models": _get(
            "The models that answer",
            _listed(
                object={"enum": ["list"]},
                data={"type": "array", "items": _MODEL},
                loading={"type": "array", "items": _TEXT},
            ),
            error=_OPENAI_ERROR,
        ),
        "/v1/completions": _post(
            completions.completions.__doc__,
            object_schema(completions.FIELDS, limits),
            _COMPLETION,
            error=_OPENAI_ERROR,
            stream=True,
        ),
        "/v2": _get("What the server is", _listed(name=_TEXT, version=_TEXT)),
        "/v2/health/live": _get("Whether the process answers", {"type": "object"}),
        "/v2/health/ready": _get("Whether all models answer", {"type": "object"}),
    }
    for name, call in calls.ROUTES.items():
        request = object_schema(calls.FIELDS[name], limits)
        paths[f"/{name}"] = _post(call.__doc__, request, _ANSWERS[name])
    for version in ("", "/versions/{version}"):
        named = [_NAMED] + ([_VERSION] if version else [])
        v1, v2 = f"/v1/models/{{name}}{version}", f"/v2/models/{{name}}{version}"
        found = {
            v1: _get("The state of a model", _MODEL),
            f"{v1}/metadata": _get("The signatures of a model", {"type": "object"}),
            f"{v1}:predict": _post(
                "Computes rows or columns", _PREDICT, {"type": "object"}
            ),
            v2: _get("The default signature of a model", {"type": "object"}),
            f"{v2}/ready": _get("Whether a model answers", {"type": "object"}),
            f"{v2}/infer": _post("Computes tensors", _INFER, _INFERRED),
        }
        paths |= {path: {"parameters": named} | x for path, x in found.items()}
    found = {
        "openapi": "3.1.0",
        "info": {"title": "remixer_tf", "version": remixer_tf.__version__},
        "paths": paths,
    }
    if has_token:
        found["components"] = {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}
        }
        found["security"] = [{"token": []}]
    return found


def _listed(**properties):
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
    }


def _content(schema):
    return {"application/json": {"schema": schema}}


def _errors(schema):
    about = "A request that is refused, in one sentence"
    refused = {"description": about, "content": _content(schema)}
    codes = ("400", "401", "404", "408", "413", "415", "422", "429", "503")
    return dict.fromkeys(codes, refused)


def _get(about, schema=None, error=_ERROR, plain=False):
    content = {"text/plain": {"schema": _TEXT}} if plain else _content(schema)
    answers = {"200": {"description": "The answer", "content": content}}
    return {"get": {"summary": about, "responses": answers | _errors(error)}}


def _post(about, request, answer, error=_ERROR, stream=False):
    content = _content(answer)
    if stream:
        content["text/event-stream"] = {"schema": _TEXT}
    answers = {"200": {"description": "The answer", "content": content}}
    return {
        "post": {
            "summary": about,
            "requestBody": {"required": True, "content": _content(request)},
            "responses": answers | _errors(error),
        }
    }


async def openapi(request):
    """The description of the server."""
    app = request.app
    return json_response(describe(app.limits, app.has_token))
