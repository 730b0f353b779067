"""Tools that the tests of layers share."""

import numpy as np
import pytest
from keras import ops

from tests.compiled import slow_on_jax

D_MODEL = 12
# Policies, and how far from NumPy they may be, relative to the largest number. On JAX
# `check_sublayer` has each layer in bfloat16.
DTYPES = pytest.mark.parametrize(
    "dtype, tol",
    slow_on_jax([("float32", 2e-5), ("mixed_bfloat16", 0.03)], but=[("float32", 2e-5)]),
)


def randomize(layer, seed=1):
    """Gives every weight a random value, so that zeros and ones hide nothing."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign(rng.normal(size=weight.shape, scale=0.5).astype("float32"))


def assert_equals(y, expected, tol):
    """Checks a layer's output of any dtype against NumPy's, see `DTYPES`."""
    y = np.array(ops.cast(y, "float32"))
    np.testing.assert_allclose(
        y, expected, rtol=0, atol=tol * max(1.0, np.abs(expected).max())
    )
