"""TensorFlow Serving's REST interface: `/v1/models/NAME:predict`.

https://www.tensorflow.org/tfx/serving/api_rest
"""

from remixer_tf.server.completions import as_model
from remixer_tf.server.fields import shown
from remixer_tf.server.limits import Refusal, invalid
from remixer_tf.server.requests import (
    json_response,
    model_routes,
    read_json,
    row_json,
    unless_left,
)
from remixer_tf.server.signatures import NEEDED, read_row

_TYPES = {"string": "DT_STRING", "float32": "DT_FLOAT", "float64": "DT_DOUBLE"}
_TYPES |= {"int32": "DT_INT32", "int64": "DT_INT64", "uint8": "DT_UINT8"}
_TYPES |= {"bool": "DT_BOOL"}
_FIELDS = ("instances", "inputs", "signature_name")


def model_of(request):
    """Returns the `Served` that a path names, perhaps with its version."""
    served = request.app.models.get(request.path_params["name"])
    version = request.path_params.get("version", served.version)
    if version != served.version:
        raise Refusal(
            404,
            f"The model {served.name} has version {served.version}, and not "
            f"{version!r:.40}.",
        )
    return served


async def predict(request):
    """Computes rows (`instances`) or columns (`inputs`) of a signature."""
    limits = request.app.limits
    body = await read_json(request, limits)
    served = model_of(request)
    if not isinstance(body, dict):
        raise invalid("The request must be a JSON object.")
    if unknown := [name for name in body if name not in _FIELDS]:
        raise invalid(
            f"There is no field {unknown[0]!r:.80}. There are: {', '.join(_FIELDS)}."
        )
    name = body.get("signature_name")
    if name is not None and not isinstance(name, str):
        raise invalid("signature_name must be a text.")
    signature = served.signature(name)
    if ("instances" in body) == ("inputs" in body):
        raise invalid("Give either instances, which are rows, or inputs, columns.")
    if by_row := "instances" in body:
        rows = _from_instances(signature, body["instances"])
    else:
        rows = _from_columns(signature, body["inputs"])
    if not 1 <= len(rows) <= limits.max_rows:
        raise invalid(f"{len(rows)} rows. Expected: 1 to {limits.max_rows}.")
    rows = [read_row(signature, row, limits) for row in rows]
    answers = await unless_left(request, served.ask(signature, rows))
    request.app.metrics.count_answers(served, name or served.default, answers)
    found = [row_json(answer, signature.outputs) for answer in answers]
    if len(signature.outputs) == 1:
        (only,) = signature.outputs
        values = [row[only] for row in found]
        return json_response({"predictions" if by_row else "outputs": values})
    if by_row:
        return json_response({"predictions": found})
    return json_response(
        {"outputs": {key: [row[key] for row in found] for key in signature.outputs}}
    )


def _single(signature):
    """The name of the only input that a request must give, or None."""
    needed = [k for k, x in signature.inputs.items() if x.default is NEEDED]
    return needed[0] if len(needed) == 1 else None


def _is_object(value):
    """Whether a value has names of inputs, and is no text in base64."""
    return isinstance(value, dict) and value.keys() != {"b64"}


def _from_instances(signature, instances):
    if not isinstance(instances, list):
        raise invalid(f"instances must be a list. Received: {shown(instances)}")
    single = _single(signature)
    rows = [x if _is_object(x) or single is None else {single: x} for x in instances]
    if any(not isinstance(row, dict) for row in rows):
        raise invalid(f"Each instance must be an object of {_needed(signature)}.")
    return rows


def _from_columns(signature, inputs):
    single = _single(signature)
    if not _is_object(inputs):
        if single is None:
            raise invalid(f"inputs must be an object of {_needed(signature)}.")
        inputs = {single: inputs}
    columns = {k: x if isinstance(x, list) else [x] for k, x in inputs.items()}
    size = max(map(len, columns.values()), default=0)
    for name, column in columns.items():
        spec = signature.inputs.get(name)
        # One number of a setting is for all rows.
        if len(column) == 1 and spec is not None and spec.default is not NEEDED:
            columns[name] = column * size
        elif len(column) != size:
            raise invalid(f"{name:.80} has {len(column)} rows, and others have {size}.")
    return [{name: column[i] for name, column in columns.items()} for i in range(size)]


def _needed(signature):
    return ", ".join(k for k, x in signature.inputs.items() if x.default is NEEDED)


async def status(request):
    """The state of a model, for TensorFlow Serving's clients and for OpenAI's."""
    served = model_of(request)
    state = {
        "version": served.version,
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    return json_response(as_model(served) | {"model_version_status": [state]})


async def metadata(request):
    """The signatures of a model."""
    served = model_of(request)
    found = {
        name: {
            "inputs": {k: _tensor(k, x) for k, x in signature.inputs.items()},
            "outputs": {k: _tensor(k, x) for k, x in signature.outputs.items()},
            "method_name": "tensorflow/serving/predict",
        }
        for name, signature in served.signatures.items()
    }
    spec = {"name": served.name, "signature_name": "", "version": served.version}
    return json_response(
        {
            "model_spec": spec,
            "metadata": {"signature_def": {"signature_def": found}},
        }
    )


def _tensor(name, tensor):
    sizes = [-1, *(-1 if n is None else n for n in tensor.shape)]
    return {
        "dtype": _TYPES.get(tensor.dtype, "DT_INVALID"),
        "tensor_shape": {
            "dim": [{"size": str(n), "name": ""} for n in sizes],
            "unknown_rank": False,
        },
        "name": name,
    }


def routes():
    """Returns the routes."""
    post, get = {":predict": predict}, {"/metadata": metadata, "": status}
    return model_routes("/v1/models/{name}", post, get)
