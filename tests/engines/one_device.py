"""The train step of this backend, on one device."""

import keras

from remixer_tf.engines.jax.engine import JaxEngine
from remixer_tf.engines.tensorflow.step import TrainStep
from remixer_tf.engines.tensorflow.strategy import get_strategy
from remixer_tf.objectives.objective import Objective


def make_step(model, optimizer, jit_compile=False, **options):
    """Builds a model, and returns its step; `options` are those of `Objective`."""
    objective = Objective(**options)
    if keras.backend.backend() == "jax":  # where all is compiled
        engine = JaxEngine()
        engine.build(lambda: model, lambda: optimizer, "float32", objective)
        return engine.step
    model.build()
    return TrainStep(model, optimizer, get_strategy(), objective, jit_compile)
