"""The train step of this backend, on one device."""

import keras
import numpy as np

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


def assert_same_training(received, expected):
    """Compares two pairs: the sums of steps and the model, with dropout's state."""
    (sums, model), (expected_sums, expected_model) = received, expected
    assert sums.keys() == expected_sums.keys()
    for key, value in expected_sums.items():
        np.testing.assert_allclose(sums[key], value, rtol=1e-5, atol=1e-6, err_msg=key)
    pairs = zip(model.variables, expected_model.variables, strict=True)
    for variable, other in pairs:
        ours, theirs = variable.numpy(), other.numpy()
        np.testing.assert_allclose(ours, theirs, atol=1e-5, err_msg=variable.path)
