"""Chooses the engine of Keras' backend."""

import functools

import keras

from remixer_tf.engines.jax.engine import JaxEngine
from remixer_tf.engines.tensorflow.engine import TensorFlowEngine
from remixer_tf.errors import UserError


def backend_engine(tensorflow=TensorFlowEngine, jax=JaxEngine):
    """Makes the `Engine` of Keras' backend, which KERAS_BACKEND names.

    `tensorflow` and `jax` are factories of one. Settings of the engine that does not
    run are ignored. Raises a ValueError if there is no engine for the backend.
    """
    engines = {"tensorflow": tensorflow, "jax": jax}
    backend = keras.backend.backend()
    if backend not in engines:
        raise UserError(
            "Models run on TensorFlow and on JAX. Set KERAS_BACKEND to one of "
            f"{', '.join(engines)}. Received: {backend}"
        )
    return engines[backend]()


def engine_of(model):
    """Makes an `Engine` for a built `keras.Model`, on one device and without XLA."""
    engine = backend_engine(functools.partial(TensorFlowEngine, jit_compile=False))
    engine.model = model
    return engine
