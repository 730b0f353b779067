"""Functions that compute with a layer's weights, compiled and differentiated."""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops


def compiled(
    function: Callable[..., Any], layer: Any = None, quickly: bool = False
) -> Callable[..., Any]:
    """Compiles on JAX what `function` makes of arrays; on TensorFlow, leaves it.

    Without jit, JAX compiles every operation by itself, once for each shape: a tiny
    model takes five times as long. The program reads the layer's variables as they are
    at each call, and assigns to them what it changed (the states of random numbers).
    Without `layer`, these are those of `function`, a layer itself. `quickly` compiles
    without most optimizations, for a program that runs a few times.
    """
    if keras.backend.backend() == "tensorflow":
        return function
    import jax

    layer = layer or function

    options = {"xla_backend_optimization_level": 0} if quickly else None

    @functools.partial(jax.jit, compiler_options=options)
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


def in_graph(function):
    """Traces a function once on TensorFlow, where it is called often."""
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    return tf.function(function, autograph=False)


def outputs_and_gradients(
    function: Callable[..., Any], layer: Any
) -> tuple[Any, dict[str, Any]]:
    """Differentiates a sum over the outputs of `function()` by the layer's weights.

    Each output counts as y / (1 + |y|), so that masked logits of -1e9 do not drown the
    others. Returns NumPy arrays, `(outputs, {path: gradient})`; None for a weight that
    no gradient reaches.
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

        values = [weight.value for weight in weights]
        program = jax.jit(jax.grad(loss_of, has_aux=True)).trace(values)
        gradients, outputs = program.lower().compile()(values)
        pairs = zip(gradients, _depends(program.jaxpr.jaxpr), strict=False)
        gradients = [g if reached else None for g, reached in pairs]
    arrays = [g if g is None else ops.convert_to_numpy(g) for g in gradients]
    names = [weight.path for weight in weights]
    return ops.convert_to_numpy(outputs), dict(zip(names, arrays, strict=True))


def _depends(jaxpr):
    """Which outputs of a JAX program are computed from anything but constants."""
    known = {*jaxpr.invars, *jaxpr.constvars}

    def is_known(atom):
        return not hasattr(atom, "val") and atom in known  # A literal has a value.

    for equation in jaxpr.eqns:
        if any(map(is_known, equation.invars)):
            known.update(equation.outvars)
    return [is_known(atom) for atom in jaxpr.outvars]


def to_array(y):
    """A tensor as a float32 array of NumPy."""
    return ops.convert_to_numpy(ops.cast(y, "float32"))
