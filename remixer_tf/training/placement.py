"""How the devices of a mesh share variables and tensors: what Keras asks on JAX."""

import contextlib
import re

import keras


def placed(sharding):
    """Has Keras make variables on the devices that will have them.

    Keras computes a large one in parts, for which it wants an `Initializer` and no
    function; a small one is computed whole on one device, and then split. The numbers
    are those of one device, but for the last bit of a large one. A variable also stays
    where it is when it is assigned.

    Args:
        sharding: a function of a `keras.Variable` that has a path and a shape, and no
            value yet. It returns a `jax.sharding.NamedSharding`.

    Returns:
        a context manager.
    """
    return _distributed(_Variables(sharding))


def shared(shardings):
    """Has the devices share tensors while a program is traced.

    Args:
        shardings: dictionary {expression of a tensor's path: sharding}. With none,
            Keras has no distribution.

    Returns:
        a context manager.
    """
    return _distributed(_Tensors(shardings) if shardings else None)


@contextlib.contextmanager
def _distributed(distribution):
    previous = keras.distribution.distribution()
    keras.distribution.set_distribution(distribution)
    try:
        yield
    finally:
        keras.distribution.set_distribution(previous)


class _Variables:
    """Says to Keras how new variables are shared."""

    def __init__(self, sharding):
        self.get_variable_layout = sharding

    def get_tensor_layout(self, path):
        return None  # Activations are the compiler's.


class _Tensors:
    """Says to Keras how tensors are shared."""

    def __init__(self, shardings):
        self._shardings = shardings

    def get_tensor_layout(self, path):
        for expression, sharding in self._shardings.items():
            if re.fullmatch(expression, path):
                return sharding
        return None
