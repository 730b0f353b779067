"""Where Keras' variables on JAX are when they are made."""

import contextlib

import keras


@contextlib.contextmanager
def placed(sharding):
    """Has Keras make variables on the devices that will have them.

    Keras computes a large one in parts, for which it wants an `Initializer` and no
    function; a small one is computed whole on one device, and then split. The numbers
    are those of one device, but for the last bit of a large one. A variable also stays
    where it is when it is assigned.

    Args:
        sharding: a function of a `keras.Variable` that has a path and a shape, and no
            value yet. It returns a `jax.sharding.NamedSharding`.
    """
    previous = keras.distribution.distribution()
    keras.distribution.set_distribution(_Placement(sharding))
    try:
        yield
    finally:
        keras.distribution.set_distribution(previous)


class _Placement:
    """What Keras asks of a distribution."""

    def __init__(self, sharding):
        self.get_variable_layout = sharding

    def get_tensor_layout(self, path):
        return None  # Activations are the compiler's.
