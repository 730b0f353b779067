"""Checkpoints whose arrays orbax writes: each host writes its devices' parts.

They have these files besides those of `writing`:

    <step>/arrays/         orbax's folder of {group: {variable path: array}}
    <step>/checksums.json  CRC-32 of its files, as orbax has no checksums of values
"""

import contextlib
import os
import zlib

import jax
import keras
import numpy as np
import tensorflow as tf
from etils import epath

from remixer_tf.checkpoints.damage import DamagedError
from remixer_tf.checkpoints.whole_folder import read_json, write_json
from remixer_tf.errors import StorageError

_SECONDS = 3600  # the most that hosts wait for each other's writing
_CHUNK = 1 << 24


def is_sharded(folder):
    """Whether orbax wrote the arrays of the checkpoint in `folder`."""
    return tf.io.gfile.isdir(_arrays(folder))


def save(folder, groups):
    """Copies arrays to their hosts, and starts writing them. All processes call it.

    `groups` are {group: {variable path: `jax.Array`}}, which a step may change now.
    Returns a function without arguments that returns when all processes have written,
    or raises the error of one. All processes call it, in any thread.
    """
    import orbax.checkpoint as ocp  # It takes most of a second.

    checkpointer = ocp.StandardCheckpointer(
        async_options=ocp.options.AsyncOptions(timeout_secs=_SECONDS)
    )
    checkpointer.save(_arrays(folder), groups)
    return checkpointer.close


def write_checksums(folder):
    """Writes the checksums of what `save` wrote. One process calls it."""
    write_json(f"{folder}/checksums.json", _checksums(folder))


def check_checksums(folder):
    """Raises DamagedError if a file is missing or changed."""
    written, found = read_json(f"{folder}/checksums.json"), _checksums(folder)
    written = written if isinstance(written, dict) else {"checksums.json": 0}
    other = sorted(k for k in written if written[k] != found.get(k))
    if other:
        raise DamagedError(
            f"The checkpoint {folder} is damaged: {', '.join(other[:3])} are missing "
            f"or changed ({len(other)} files). Use another step, or a good copy of it."
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
    """Sets variables: JAX's on their devices, others through NumPy. See `reading`."""
    import orbax.checkpoint as ocp

    if keras.backend.backend() != "jax":
        jax.config.update("jax_platforms", "cpu")  # Accelerators are TensorFlow's.
    numpy = ocp.RestoreArgs(restore_type=np.ndarray)
    item, arguments = {}, {}
    for name, variable in pairs:
        # Without a sharding, orbax would take the one that wrote the array.
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
    """Turns an array that each process has whole into one that processes share.

    `value` is returned if it is shared already, or one process has all devices of the
    sharding. A dtype of None keeps `value`'s. `jax.device_put` would first compare the
    arrays of all processes, on each device.
    """
    whole = getattr(value, "is_fully_addressable", True)  # as NumPy's are
    if sharding.is_fully_addressable or not whole:
        return value
    value = np.asarray(value, dtype)
    return jax.make_array_from_process_local_data(sharding, value, value.shape)


@contextlib.contextmanager
def _read_errors():
    """Turns tensorstore's errors, which are ValueErrors, into OSErrors."""
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
