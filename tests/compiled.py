"""Functions of a layer as one program each on JAX, and gradients on both backends.

Without jit, JAX compiles every operation by itself, once for each shape: a tiny model
takes five times as long as when it is compiled whole. TensorFlow compiles nothing.
"""

import keras
import pytest
from keras import ops


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


def compiled(function, layer=None):
    """Compiles on JAX what `function` makes of arrays; on TensorFlow, leaves it.

    The program reads the layer's variables as they are at each call, and assigns to
    them what it changed (the states of random numbers).

    Args:
        function: a function of nests of arrays, or a layer.
        layer: the layer whose variables it reads; without one, `function`.

    Returns:
        a function of the same arguments.
    """
    if keras.backend.backend() == "tensorflow":
        return function
    import jax

    layer = layer or function

    @jax.jit
    def program(values, args, kwargs):
        states = zip(layer.variables, values, strict=True)
        with keras.StatelessScope(states) as scope:
            outputs = function(*args, **kwargs)
        return outputs, [
            scope.get_current_value(state) for state in layer.non_trainable_variables
        ]

    def call(*args, **kwargs):
        values = [variable.value for variable in layer.variables]
        outputs, states = program(values, args, kwargs)
        for variable, value in zip(layer.non_trainable_variables, states, strict=True):
            variable.assign(value)
        return outputs

    return call


def in_graph(function, layer=None):
    """As `compiled`, and a graph on TensorFlow: loops take long there without one."""
    if keras.backend.backend() == "jax":
        return compiled(function, layer)
    import tensorflow as tf

    return tf.function(function)


def outputs_and_gradients(function, layer):
    """Differentiates a sum over the outputs of `function()` by the layer's weights.

    Each output counts as y / (1 + |y|), so that masked logits of -1e9 do not drown the
    others.

    Args:
        function: a function of no arguments to an array.
        layer: the layer that it calls.

    Returns:
        `(outputs, {path: gradient})`, NumPy arrays. Where none reaches a weight,
        TensorFlow says None, JAX zero.
    """
    weights = layer.trainable_variables
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            outputs = function()
            loss = ops.sum(ops.softsign(outputs))
        gradients = tape.gradient(loss, [weight.value for weight in weights])
    else:
        import jax

        def loss_of(values):
            with keras.StatelessScope(zip(weights, values, strict=True)):
                outputs = function()
            return ops.sum(ops.softsign(outputs)), outputs

        gradient_of = jax.jit(jax.grad(loss_of, has_aux=True))
        gradients, outputs = gradient_of([weight.value for weight in weights])
    arrays = [g if g is None else ops.convert_to_numpy(g) for g in gradients]
    names = [weight.path for weight in weights]
    return ops.convert_to_numpy(outputs), dict(zip(names, arrays, strict=True))
