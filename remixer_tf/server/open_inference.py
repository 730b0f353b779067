"""The Open Inference Protocol, version 2, of KServe and Triton: `/v2`.

https://github.com/kserve/open-inference-protocol; with the extension of binary tensors.
"""

import json
import math

import numpy as np
from starlette.responses import Response
from starlette.routing import Route

import remixer_tf
from remixer_tf.server.fields import parse, shown
from remixer_tf.server.limits import Refusal, invalid, try_later
from remixer_tf.server.requests import (
    json_response,
    model_routes,
    read_body,
    unless_left,
)
from remixer_tf.server.signatures import NEEDED, as_json, read_row
from remixer_tf.server.tf_serving import model_of

_HEADER = "Inference-Header-Content-Length"
_TYPES = {"string": "BYTES", "bool": "BOOL", "float16": "FP16", "float32": "FP32"}
_TYPES |= {"float64": "FP64"}
_TYPES |= {x: x.upper() for n in (8, 16, 32, 64) for x in (f"int{n}", f"uint{n}")}
_NUMPY = {kind: name for name, kind in _TYPES.items() if name != "string"}


async def server(request):
    """What the server is."""
    return json_response(
        {
            "name": "remixer_tf",
            "version": remixer_tf.__version__,
            "extensions": ["binary_tensor_data"],
        }
    )


async def live(request):
    """Whether the process answers."""
    return json_response({"live": True})


async def all_ready(request):
    """Whether all models answer."""
    if not request.app.models.all_ready():
        raise try_later(503, "Models are being loaded.", 5)
    return json_response({"ready": True})


async def model_ready(request):
    """Whether a model answers."""
    served = model_of(request)
    return json_response({"name": served.name, "ready": True})


async def model(request):
    """The default signature of a model."""
    served = model_of(request)
    signature = served.signature()
    return json_response(
        {
            "name": served.name,
            "versions": [served.version],
            "platform": served.platform,
            "inputs": [_describe(k, x) for k, x in signature.inputs.items()],
            "outputs": [_describe(k, x) for k, x in signature.outputs.items()],
        }
    )


def _describe(name, tensor):
    shape = [-1, *(-1 if n is None else n for n in tensor.shape)]
    return {"name": name, "datatype": _TYPES[tensor.dtype], "shape": shape}


async def infer(request):
    """Computes tensors of a signature, which the parameter signature_name names."""
    app = request.app
    body = await read_body(request, app.limits)
    body, binary = _split(request, body)
    body = parse(body)
    served = model_of(request)
    if not isinstance(body, dict) or not isinstance(body.get("inputs"), list):
        raise invalid("The request must be a JSON object with a list of inputs.")
    parameters = _parameters(body)
    name = parameters.get("signature_name")
    if name is not None and not isinstance(name, str):
        raise invalid("The parameter signature_name must be a text.")
    signature = served.signature(name)
    rows = [
        read_row(signature, row, app.limits)
        for row in _rows(signature, body["inputs"], binary, app.limits)
    ]
    wanted = _wanted(signature, body, parameters)
    answers = await unless_left(request, served.ask(signature, rows))
    app.metrics.count_answers(served, name or served.default, answers)
    content = {"model_name": served.name, "model_version": served.version}
    if isinstance(body.get("id"), str):
        content["id"] = body["id"]
    outputs, parts = [], []
    for key, in_binary in wanted.items():
        output, part = _output(key, signature.outputs[key], answers, in_binary)
        outputs.append(output)
        parts += part
    content["outputs"] = outputs
    if not parts:
        return json_response(content)
    text = json.dumps(content).encode()
    headers = {_HEADER: str(len(text)), "Content-Type": "application/octet-stream"}
    return Response(b"".join([text, *parts]), headers=headers)


def _parameters(body):
    parameters = body.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise invalid("parameters must be an object.")
    return parameters


def _split(request, body):
    """The JSON of a request, and the binary tensors behind it."""
    length = request.headers.get(_HEADER)
    if length is None:
        return body, b""
    if not length.isdecimal() or int(length) > len(body):
        raise Refusal(400, f"{_HEADER} must be the bytes of the JSON.")
    return body[: int(length)], body[int(length) :]


def _rows(signature, inputs, binary, limits):
    """The rows that tensors hold, dictionaries, not checked by a signature."""
    columns, at = {}, 0
    for tensor in inputs:
        if not isinstance(tensor, dict) or not isinstance(tensor.get("name"), str):
            raise invalid("Each of inputs must be an object with a name.")
        name, shape, kind = tensor["name"], tensor.get("shape"), tensor.get("datatype")
        spec = signature.inputs.get(name)
        if spec is None or name in columns:
            raise invalid(
                f"There is no input {name!r:.80}, or it is given twice. There are: "
                f"{', '.join(signature.inputs)}."
            )
        expected = _TYPES[spec.dtype]
        if kind != expected:
            raise invalid(
                f"The datatype of {name} must be {expected}. Received: {shown(kind)}"
            )
        sizes = isinstance(shape, list) and all(
            type(n) is int and 0 < n < 2**31 for n in shape
        )
        if not sizes or len(shape) > 8 or not shape:
            raise invalid(f"The shape of {name} must be a list of sizes.")
        if shape[0] > limits.max_rows:
            raise invalid(f"{name} has {shape[0]} rows. The most: {limits.max_rows}.")
        if spec.shape == () and math.prod(shape) != shape[0]:
            raise invalid(f"The shape of {name} must be [rows]. Received: {shape}")
        size = _binary_size(name, tensor)
        if size is not None:
            values = _of_binary(name, kind, shape, binary[at : at + size])
            at += size
        else:
            values = _of_json(name, kind, shape, tensor.get("data"))
        columns[name] = values if spec.shape else values.reshape(-1)
    if at != len(binary):
        raise invalid(f"The tensors have {at} bytes, and the request {len(binary)}.")
    if not columns:
        raise invalid("The request has no inputs.")
    count = max(len(x) for x in columns.values())
    for name, column in columns.items():
        if len(column) == 1 and signature.inputs[name].default is not NEEDED:
            columns[name] = np.repeat(column, count, axis=0)
        elif len(column) != count:
            raise invalid(f"{name} has {len(column)} rows, and others have {count}.")
    return [{k: x[i] for k, x in columns.items()} for i in range(count)]


def _binary_size(name, tensor):
    parameters = _parameters(tensor)
    size = parameters.get("binary_data_size")
    if size is not None and (type(size) is not int or size < 0):
        raise invalid(f"binary_data_size of {name} must be a number of bytes.")
    return size


def _of_binary(name, kind, shape, data):
    """The array that bytes hold."""
    wrong = invalid(f"The bytes of {name} do not have its shape {shape}.")
    count = math.prod(shape)
    if kind != "BYTES":
        dtype = np.dtype(_NUMPY[kind])
        if len(data) != count * dtype.itemsize:
            raise wrong
        return np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape)
    values, at = [], 0
    while at < len(data):
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if end > len(data) or at + 4 > len(data):
            raise wrong
        values.append(data[at + 4 : end])
        at = end
    if len(values) != count:
        raise wrong
    return _objects(values, shape)


def _of_json(name, kind, shape, data):
    """The array that nested or flat lists hold."""
    values = []

    def add(value):
        if isinstance(value, list):
            for x in value:
                add(x)
        else:
            values.append(value)

    add(data if isinstance(data, list) else [])
    if len(values) != math.prod(shape):
        raise invalid(
            f"The data of {name} must be a list of {math.prod(shape)} values, as its "
            "shape says."
        )
    if kind == "BYTES":
        return _objects(values, shape)
    is_flag = kind == "BOOL"
    kinds = {bool} if is_flag else {int, float} if kind.startswith("FP") else {int}
    if any(type(x) not in kinds for x in values):
        raise invalid(f"The data of {name} must be of type {kind}.")
    try:
        with np.errstate(over="ignore"):  # `read_row` refuses what is not finite.
            return np.array(values, _NUMPY[kind]).reshape(shape)
    except OverflowError:
        raise invalid(f"The data of {name} must be of type {kind}.") from None


def _objects(values, shape):
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def _wanted(signature, body, parameters):
    """{output: whether in binary} of a request."""
    binary = parameters.get("binary_data_output") is True
    outputs = body.get("outputs")
    if outputs is None:
        return dict.fromkeys(signature.outputs, binary)
    wanted = {}
    for output in outputs if isinstance(outputs, list) else [None]:
        name = output.get("name") if isinstance(output, dict) else None
        if not isinstance(name, str) or name not in signature.outputs:
            raise invalid(
                f"There is no output {shown(name)}. There are: "
                f"{', '.join(signature.outputs)}."
            )
        own = _parameters(output)
        wanted[name] = own.get("binary_data", binary) is True
    return wanted or dict.fromkeys(signature.outputs, binary)


def _output(name, spec, answers, in_binary):
    """An output of the response, and its bytes, a list of them."""
    values = [answer[name] for answer in answers]
    shape = [len(values), *np.shape(values[0])]
    found = {"name": name, "datatype": _TYPES[spec.dtype], "shape": shape}
    if spec.dtype == "string":
        flat = np.array(values, object).reshape(-1).tolist()
        data = b"".join(len(x).to_bytes(4, "little") + x for x in flat)
    else:
        flat = np.asarray(values, spec.dtype).reshape(-1)
        data = flat.tobytes()
    if in_binary:
        found["parameters"] = {"binary_data_size": len(data)}
        return found, [data]
    found["data"] = as_json(flat)
    return found, []


def routes():
    """Returns the routes."""
    post, get = {"/infer": infer}, {"/ready": model_ready, "": model}
    return [
        Route("/v2", server, name="/v2"),
        Route("/v2/health/live", live, name="/v2/health/live"),
        Route("/v2/health/ready", all_ready, name="/v2/health/ready"),
        *model_routes("/v2/models/{name}", post, get),
    ]
