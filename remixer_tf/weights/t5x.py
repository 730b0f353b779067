"""Reads T5X's checkpoints: a msgpack file, and zarr arrays next to it."""

import operator
import os

import ml_dtypes
import msgpack
import numpy as np

from remixer_tf.checkpoints.damage import first_line
from remixer_tf.errors import StorageError, UserError, shorten
from remixer_tf.weights.names import T5X
from remixer_tf.weights.source import Source
from remixer_tf.weights.t5 import t5_from_shapes
from remixer_tf.weights.values import first_text

# Flax' codes of types that msgpack lacks.
_ARRAY, _SCALAR = 1, 3
_CHUNKED = "__msgpack_chunked_array__"


def read_t5x(path):
    """Reads a checkpoint of T5X, and the config.gin next to it or one folder above.

    `path` is that of the msgpack file, called `checkpoint` in a folder of its own if
    arrays are next to it. Raises a ValueError if the file is not T5X's, or holds no T5.
    """
    tree = _unpack(path)
    optimizer = tree.get("optimizer", tree)
    target = optimizer.get("target") if isinstance(optimizer, dict) else None
    if not isinstance(target, dict):
        raise UserError(
            f"{path} has no 'target', which T5X's checkpoints have. Received: "
            f"{shorten([*map(str, tree)])}."
        )
    arrays = dict(_flatten(target))
    folder = os.path.dirname(path) or "."
    shapes = {name: _shape(array, path) for name, array in arrays.items()}
    places = folder, os.path.dirname(os.path.abspath(folder))
    text = first_text(*(os.path.join(place, "config.gin") for place in places))
    model = t5_from_shapes(shapes, T5X, text)
    return Source(
        "T5X T5",
        *model.architecture(),
        T5X,
        shapes,
        lambda name: _read(name, arrays[name], shapes[name], folder),
    )


def _unpack(path):
    """The tree of a msgpack file, a dictionary."""

    def extension(code, data):
        if code not in (_ARRAY, _SCALAR):
            raise UserError(f"it holds an extension of code {code}")
        shape, dtype, content = msgpack.unpackb(data)
        dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
        return np.frombuffer(content, dtype).reshape(shape)

    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        tree = msgpack.unpackb(content, ext_hook=extension, strict_map_key=False)
        if not isinstance(tree, dict):
            raise UserError("it holds no dictionary")
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        reason = str(error).rstrip(".")
        raise UserError(
            f"{path} is not a checkpoint of T5X: {reason}. Load a folder, if it is a "
            "part of other weights or of a run."
        ) from error
    return tree


def _flatten(tree, prefix=""):
    """Yields (name, leaf); a leaf is an array or describes one."""
    for key, value in tree.items():
        name = f"{prefix}/{key}" if prefix else str(key)
        is_array = not isinstance(value, dict) or "driver" in value or _CHUNKED in value
        if is_array:
            yield name, value
        else:
            yield from _flatten(value, name)


def _shape(leaf, path):
    try:
        if isinstance(leaf, np.ndarray):
            return leaf.shape
        if _CHUNKED in leaf:
            shape = [leaf["shape"][str(i)] for i in range(len(leaf["shape"]))]
        else:
            shape = leaf["metadata"]["shape"]
        return tuple(map(operator.index, shape))
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{path} holds {shorten([repr(leaf)])} where an array was expected."
        ) from error


def _read(name, leaf, shape, folder):
    """The array that a leaf is or describes; it must have `shape`, as `_shape`'s."""
    try:
        if isinstance(leaf, dict) and _CHUNKED in leaf:
            chunks = leaf["chunks"]
            parts = [chunks[str(i)].ravel() for i in range(len(chunks))]
            leaf = np.concatenate(parts).reshape(shape)
        elif isinstance(leaf, dict):
            leaf = _read_zarr(leaf, folder)
        if leaf.shape != shape:
            raise UserError(f"its shape is {leaf.shape}, expected: {shape}")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = "it has no " * isinstance(error, KeyError) + first_line(error)
        raise UserError(f"{name} cannot be read: {reason}. Copy it anew.") from error
    # T5X's version 2 had no other way to write bfloat16.
    return leaf.view(ml_dtypes.bfloat16) if leaf.dtype == np.uint16 else leaf


def _read_zarr(spec, folder):
    """Reads the array of a TensorStore specification, from the checkpoint's folder."""
    import tensorstore  # late: only large checkpoints have such arrays

    # The specification names the store it was written to, such as Google Cloud Storage.
    store = spec["kvstore"]
    name = (store.get("path") or spec.get("path", "")).strip("/")
    path = os.path.join(folder, name)
    if spec["driver"] != "zarr" or not name or ".." in name.split("/"):
        raise UserError(f"Not an array of a checkpoint of T5X: {spec}.")
    # A file of zarr's that is missing would be read as zeros.
    array = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": path},
        "fill_missing_data_reads": False,
    }
    return tensorstore.open(array, read=True).result().read().result()
