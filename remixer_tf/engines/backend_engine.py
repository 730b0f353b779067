"""The engine of the library that Keras runs on: the one place that chooses."""

import functools

import keras

from remixer_tf.engines.jax.engine import JaxEngine
from remixer_tf.engines.tensorflow.engine import TensorFlowEngine
from remixer_tf.errors import UserError


def backend_engine(tensorflow=TensorFlowEngine, jax=JaxEngine):
    """Makes the engine of Keras' backend, which the variable KERAS_BACKEND names.

    Args:
        tensorflow, jax: factories of an `Engine`, of which the backend's is called.
            What configures the other one is not read.

    Returns:
        an `Engine`.

    Raises:
        ValueError: the backend is another.
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
    """Makes the engine that runs a model which was made without one, on one device.

    Args:
        model: a built `keras.Model`.

    Returns:
        an `Engine`. On TensorFlow it leaves XLA out.
    """
    engine = backend_engine(functools.partial(TensorFlowEngine, jit_compile=False))
    engine.model = model
    return engine
