"""Checkpoints whose arrays orbax writes: each host writes its devices' parts.

They have this folder besides the files of `writing`:

    <step>/arrays/         orbax's, of {group: {variable path: array}}
"""

import contextlib

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from remixer_tf.errors import StorageError

_SECONDS = 3600  # the most that hosts wait for each other's writing


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
    import jax  # late: `remixer_tf.imports`
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
    import jax

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
