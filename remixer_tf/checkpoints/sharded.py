"""The arrays of a checkpoint, written by orbax: each device's part from where it is.

No host holds more than the parts of its own devices. Beside the other files of a
checkpoint, see `writing`:

    <step>/arrays/         orbax's folder of {group: {variable path: array}}
    <step>/checksums.json  CRC-32 of its files, since orbax writes none of the values
"""

import contextlib
import json
import os
import zlib

import jax
import keras
import numpy as np
import tensorflow as tf
from etils import epath

from remixer_tf.checkpoints.damage import DamagedError
from remixer_tf.errors import StorageError

_SECONDS = 3600  # that writing may take, and hosts wait for each other
_CHUNK = 1 << 24


def is_sharded(folder):
    """Whether the arrays of the checkpoint in `folder` were written by orbax."""
    return tf.io.gfile.isdir(_arrays(folder))


def save(folder, groups):
    """Copies arrays to the hosts that they are on, and starts writing them.

    All processes call it. The arrays' memory may be given to a step once it returned.

    Args:
        folder: of the checkpoint.
        groups: {group: {variable path: `jax.Array`}}.

    Returns:
        a function of no arguments that returns when all processes have written, and
        raises what kept one from it. All processes call it, in any thread.
    """
    import orbax.checkpoint as ocp  # Here, since that takes most of a second.

    checkpointer = ocp.StandardCheckpointer(
        async_options=ocp.options.AsyncOptions(timeout_secs=_SECONDS)
    )
    checkpointer.save(_arrays(folder), groups)
    return checkpointer.close


def write_checksums(folder):
    """Writes the checksums of all that `save` has written. One process does."""
    with tf.io.gfile.GFile(os.path.join(folder, "checksums.json"), "w") as file:
        json.dump(_checksums(folder), file)


def check_checksums(folder):
    """Raises DamagedError unless all files are there, as they were written."""
    try:
        with tf.io.gfile.GFile(os.path.join(folder, "checksums.json")) as file:
            written = json.load(file)
    except ValueError as error:
        raise DamagedError(
            f"The checkpoint {folder} is damaged: checksums.json is no JSON ({error})."
        ) from error
    found = _checksums(folder)
    if other := sorted(k for k in written if written[k] != found.get(k)):
        raise DamagedError(
            f"The checkpoint {folder} is damaged: of its arrays, "
            f"{', '.join(other[:3])} are missing or changed ({len(other)} files). Use "
            "another step, or a good copy of it."
        )


def saved_shapes(folder):
    """Returns {group: {variable path: shape}}."""
    import orbax.checkpoint as ocp

    with _read_errors(), ocp.StandardCheckpointer() as checkpointer:
        tree = checkpointer.metadata(_arrays(folder)).item_metadata.tree
    return {
        group: {name: tuple(array.shape) for name, array in arrays.items()}
        for group, arrays in tree.items()
    }


def assign(folder, group, pairs):
    """Sets variables: arrays of JAX's where they are, others by NumPy.

    `pairs` is a list of (variable path in the checkpoint, `keras.Variable`).
    """
    import orbax.checkpoint as ocp

    if keras.backend.backend() != "jax":
        jax.config.update("jax_platforms", "cpu")  # Accelerators are TensorFlow's.
    numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    item, arguments = {}, {}
    for name, variable in pairs:
        # Without a sharding, orbax would take that of the devices that wrote.
        sharding = getattr(variable.value, "sharding", None)
        item[name], arguments[name] = 0, numpy
        if sharding is not None:
            item[name] = jax.ShapeDtypeStruct(
                variable.shape, variable.dtype, sharding=sharding
            )
            arguments[name] = ocp.checkpoint_utils.construct_restore_args(item[name])
    arguments = ocp.args.PyTreeRestore(
        item={group: item}, restore_args={group: arguments}, partial_restore=True
    )
    with _read_errors(), ocp.PyTreeCheckpointer() as checkpointer:
        arrays = checkpointer.restore(_arrays(folder), args=arguments)[group]
    for name, variable in pairs:
        variable.assign(arrays[name])


def spread(value, sharding, dtype=None):
    """Returns an array, which each process has whole, as one that processes share.

    JAX would make it of the whole one, but compare that on each device with all
    processes' first.

    Args:
        value: array; what processes share already is returned as it is.
        sharding: of the result. If it is of one process, `value` is returned.
        dtype: of the result; None for that of `value`.
    """
    whole = getattr(value, "is_fully_addressable", True)  # as NumPy's are
    if sharding.is_fully_addressable or not whole:
        return value
    value = np.asarray(value, dtype)
    return jax.make_array_from_process_local_data(sharding, value, value.shape)


@contextlib.contextmanager
def _read_errors():
    """Raises tensorstore's errors, which are ValueErrors, as OSError."""
    try:
        yield
    except ValueError as error:
        raise StorageError(str(error)) from error


def _arrays(folder):
    return epath.Path(folder).resolve() / "arrays"  # orbax takes no relative path.


def _checksums(folder):
    """Returns {path below the folder: CRC-32} of orbax's files."""
    checksums = {}
    root = str(_arrays(folder))
    for directory, _, names in tf.io.gfile.walk(root):
        for name in names:
            path, checksum = os.path.join(directory, name), 0
            with tf.io.gfile.GFile(path, "rb") as file:
                while chunk := file.read(_CHUNK):
                    checksum = zlib.crc32(chunk, checksum)
            checksums[os.path.relpath(path, root)] = checksum
    return checksums
