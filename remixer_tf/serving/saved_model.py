"""Models as SavedModels, which TensorFlow Serving and TensorFlow load."""

import os
import tempfile
from typing import Any, NamedTuple

import tensorflow as tf

from remixer_tf.checkpoints.whole_folder import check_absent, whole_folder
from remixer_tf.errors import library
from remixer_tf.serving.requests import MAX_ROWS, batch_calls, limit_requests
from remixer_tf.tables import aligned


class Signatures(NamedTuple):
    """The signatures of an export, and what they need.

    Attributes:
        functions: dictionary of names to `tf.function`s with an `input_signature`. Each
            returns a dictionary of tensors with the leading axis `batch`.
        missing: dictionary of names to reasons. This model lacks these signatures.
        resources: list of `tf.Module`s. The functions use their variables and
            tokenizers.
        example: bytes, the strings of warm-up requests.
        files: list of str, assets.
        num_ids: int, int32 inputs are ids below it; None without such inputs.
        settings: list of `Setting`s, inputs that a request may leave out.
    """

    functions: dict
    missing: dict
    resources: list
    example: bytes = b"A question ."
    files: Any = ()
    num_ids: int | None = None
    settings: Any = ()


def export(
    model,
    path,
    configuration,
    batch_sizes=(),
    warm_up=False,
    max_rows=MAX_ROWS,
    **batching,
):
    """Writes a model as a SavedModel.

    Its assets are the files of the vocabularies and operative_config.gin. Returns the
    `Signatures` of the SavedModel.

    Args:
        model: a `TextToText`, `TextEncoder` or `ImageToClass`: its `signatures()` are
            the `Signatures` to export.
        path: str, folder of the SavedModel. It appears when it is whole. TensorFlow
            Serving needs an int as its last part, and serves the highest.
        configuration: str, gin text.
        batch_sizes: list of ints, see `batch_calls`. Empty: each call by itself.
        warm_up: bool, whether to add a request of each batch size for each signature.
            TensorFlow Serving answers them first, since first answers are slow.
        max_rows: int, see `limit_requests`.
        **batching: `wait_ms` and `batches_at_once`, see `batch_calls`.

    Raises a FileExistsError if the folder exists, an OSError if it cannot be written,
    an ImportError if warm-up requests lack tensorflow-serving-api, and a ValueError as
    `batch_calls`.
    """
    if warm_up:
        import_messages()
    check_absent(path)
    signatures = model.signatures()
    functions = signatures.functions
    if batch_sizes:
        functions = {
            name: batch_calls(function, batch_sizes, **batching)
            for name, function in functions.items()
        }
    # Outermost: a refused request does not fail those computed with it.
    functions = {
        name: limit_requests(
            function, max_rows, signatures.num_ids, signatures.settings
        )
        for name, function in functions.items()
    }
    with tempfile.TemporaryDirectory() as folder, whole_folder(path) as place:
        text_file = os.path.join(folder, "operative_config.gin")
        with open(text_file, "w") as file:
            file.write(configuration)
        # Not the model itself: all its functions would be saved too.
        root = tf.Module()
        root.resources = signatures.resources
        root.assets = [
            tf.saved_model.Asset(file) for file in (text_file, *signatures.files)
        ]
        tf.saved_model.save(root, place, functions)
        if warm_up:
            _write_warm_up(place, functions, signatures, batch_sizes or [1])
    return signatures._replace(functions=functions)


def _of_a_row(spec):
    """The axes of an input behind `batch`."""
    return spec.shape[1:] if spec.shape.rank else []


def _write_warm_up(folder, functions, signatures, batch_sizes):
    """Writes assets.extra/tf_serving_warmup_requests: example strings, else zeros."""
    text = signatures.example
    defaults = {setting.spec.name: setting.default for setting in signatures.settings}
    predict_pb2, log_pb2 = import_messages()
    path = os.path.join(folder, "assets.extra", "tf_serving_warmup_requests")
    tf.io.gfile.makedirs(os.path.dirname(path))
    with tf.io.TFRecordWriter(path) as writer:
        for name, function in functions.items():
            for size in batch_sizes:
                request = predict_pb2.PredictRequest()
                request.model_spec.name = "default"
                request.model_spec.signature_name = name
                for spec in function.input_signature:
                    # Axes of any length have 32.
                    shape = [size, *(n or 32 for n in _of_a_row(spec))]
                    value = text if spec.dtype == tf.string else 0
                    value = defaults.get(spec.name, value)
                    value = tf.fill(shape, tf.constant(value, spec.dtype))
                    request.inputs[spec.name].CopyFrom(tf.make_tensor_proto(value))
                log = log_pb2.PredictionLog(
                    predict_log=log_pb2.PredictLog(request=request)
                )
                writer.write(log.SerializeToString())


def import_messages():
    """Returns TensorFlow Serving's modules of requests and of logs."""
    return tuple(
        library(f"tensorflow_serving.apis.{name}_pb2", "warm_up", "serving")
        for name in ("predict", "prediction_log")
    )


def size_on_disk(folder):
    """Returns the bytes of all files in a folder."""
    return sum(
        tf.io.gfile.stat(os.path.join(path, name)).length
        for path, _, names in tf.io.gfile.walk(folder)
        for name in names
    )


def describe_signatures(signatures):
    """Yields lines of text: a table of the signatures, and those that are missing."""
    rows = [("signature", "", "tensor", "dtype and shape")]
    defaults = {setting.spec.name: setting.default for setting in signatures.settings}
    for name, function in signatures.functions.items():
        outputs = function.get_concrete_function().structured_outputs
        tensors = [("in", spec.name, spec) for spec in function.input_signature]
        tensors += [("out", key, spec) for key, spec in sorted(outputs.items())]
        for direction, tensor, spec in tensors:
            sizes = ["any" if n is None else str(n) for n in _of_a_row(spec)]
            shape = ", ".join(["batch", *sizes])
            kind = f"{spec.dtype.name} [{shape}]"
            if direction == "in" and tensor in defaults:
                kind += f", {defaults[tensor]} if left out"
            rows.append((name, direction, tensor, kind))
            name = ""
    yield from aligned(rows)
    for name, reason in signatures.missing.items():
        yield f"no {name}: {reason}"
