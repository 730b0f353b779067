"""Tools to compile in tests, and marks for those that are slow on JAX."""

import keras
import pytest

from remixer_tf.testing import compiled, outputs_and_gradients

__all__ = [
    "compiled",
    "in_graph",
    "of_unknown_ranks",
    "outputs_and_gradients",
    "slow_on_jax",
]


def slow_on_jax(values, but):
    """Parameters of tests, a tuple for several: on JAX all are slow, `but` these."""
    on_jax = keras.backend.backend() == "jax"
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=[pytest.mark.slow] * (on_jax and value not in but),
        )
        for value in values
    ]


def in_graph(function, layer=None):
    """As `compiled`, and a graph on TensorFlow: loops take long there without one."""
    if keras.backend.backend() == "jax":
        return compiled(function, layer)
    import tensorflow as tf

    return tf.function(function)


def of_unknown_ranks(function, *arrays):
    """A graph as TensorFlow traces it after calls with arrays of several ranks.

    On JAX, which has no such graphs, the function itself.
    """
    if keras.backend.backend() == "jax":
        return function
    import tensorflow as tf

    return tf.function(function, [tf.TensorSpec(None, a.dtype) for a in arrays])
