"""Models as SavedModels, which TensorFlow Serving and TensorFlow load."""

import os
import tempfile
from typing import Any, NamedTuple

import tensorflow as tf

from remixer_tf.checkpoints.whole_folder import check_absent, whole_folder
from remixer_tf.serving.batching import batch_calls
from remixer_tf.serving.limits import MAX_ROWS, limit_requests
from remixer_tf.serving.warm_up import import_messages, write_warm_up


class Signatures(NamedTuple):
    """What can be asked of an export.

    Attributes:
        functions: dictionary of names to `tf.function`s with an `input_signature`. Each
            returns a dictionary of tensors with the leading axis `batch`.
        missing: dictionary of names that other models have to why this one has not.
        resources: list of `tf.Module`s, whose variables and tokenizers they use.
        example: bytes, what a warm-up request holds where a string is asked for.
        files: list of str, assets.
        num_ids: int, how many ids an int32 input may have; None if there is none.
    """

    functions: dict
    missing: dict
    resources: list
    example: bytes = b"A question ."
    files: Any = ()
    num_ids: int | None = None


def export(
    model,
    directory,
    number,
    configuration,
    batch_sizes=(),
    warm_up=False,
    max_rows=MAX_ROWS,
):
    """Writes a model as the SavedModel `<directory>/<number>`.

    TensorFlow Serving serves the highest number of a folder, so exports are numbered
    by step. The folder appears under its number when it is whole. Its assets are the
    vocabulary's file, if it has one, and the configuration: operative_config.gin.

    Args:
        model: a `TextToText`, `TextEncoder` or `ImageToClass`: a `tf.Module` that has
            `signatures()`, which gives its `Signatures`.
        directory: folder of numbered exports, made if it is missing.
        number: int.
        configuration: str, gin text.
        batch_sizes: list of ints, see `batch_calls`. Empty: each call by itself.
        warm_up: bool, whether to add requests, see `write_warm_up`.
        max_rows: int, see `limit_requests`.

    Returns:
        str, the path of the SavedModel, and the `Signatures` that it has.

    Raises:
        FileExistsError: there is an export of that number.
        OSError: the folder cannot be written.
        ImportError: what `write_warm_up` needs is not installed.
        ValueError: what `batch_calls` raises.
    """
    if warm_up:
        import_messages()
    path = os.path.join(directory, str(number))
    check_absent(path)
    signatures = model.signatures()
    functions = signatures.functions
    if batch_sizes:
        functions = {n: batch_calls(f, batch_sizes) for n, f in functions.items()}
    # Outermost: a request that is refused does not fail those computed with it.
    functions = {
        name: limit_requests(function, max_rows, signatures.num_ids)
        for name, function in functions.items()
    }
    with tempfile.TemporaryDirectory() as folder, whole_folder(path) as place:
        text_file = os.path.join(folder, "operative_config.gin")
        with open(text_file, "w") as file:
            file.write(configuration)
        # Not the model itself: all its functions would be saved beside these.
        root = tf.Module()
        root.resources = signatures.resources
        root.assets = [
            tf.saved_model.Asset(file) for file in (text_file, *signatures.files)
        ]
        tf.saved_model.save(root, place, functions)
        if warm_up:
            sizes = batch_sizes or [1]
            write_warm_up(place, functions, signatures.example, sizes)
    return path, signatures._replace(functions=functions)


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
    for name, function in signatures.functions.items():
        outputs = function.get_concrete_function().structured_outputs
        tensors = [("in", spec.name, spec) for spec in function.input_signature]
        tensors += [("out", key, spec) for key, spec in sorted(outputs.items())]
        for direction, tensor, spec in tensors:
            shape = ", ".join("any" if n is None else str(n) for n in spec.shape[1:])
            shape = f"[batch{', ' if shape else ''}{shape}]"
            rows.append((name, direction, tensor, f"{spec.dtype.name} {shape}"))
            name = ""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(w) for cell, w in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()
    for name, reason in signatures.missing.items():
        yield f"no {name}: {reason}"
