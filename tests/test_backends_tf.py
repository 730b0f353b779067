"""TensorFlow and JAX give the same outputs, and gradients, from the same weights."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from tests.backend_outputs import FIRST, MORE, outputs


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(FIRST, marks=pytest.mark.slow),
        pytest.param(MORE, marks=pytest.mark.slower),
    ],
    ids=["first", "more"],
)
def test_jax_equals_tensorflow(names, tmp_path):
    """Outputs within 1e-5 of the largest; gradients within 1e-4 of their largest.

    A gradient that is zero but for rounding, such as that of a key's bias, is compared
    with the largest of its model.
    """
    path = tmp_path / "jax.npz"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.backend_outputs", path, *names],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        cwd=pathlib.Path(__file__).parent.parent,
        stderr=subprocess.PIPE,
        text=True,
    )
    ours = outputs(names)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    largest = {}  # gradient of a model
    for name, value in ours.items():
        model, is_gradient, _ = name.partition(": ")
        if is_gradient:
            largest[model] = max(largest.get(model, 0), np.abs(value).max())
    assert len(largest) == len(names)
    with np.load(path) as jax:
        assert set(jax) == set(ours) and ours.keys() >= set(names)
        for name, value in ours.items():
            model, is_gradient, _ = name.partition(": ")
            scale = np.abs(value).max()
            tolerance = 1e-5 * scale
            if is_gradient:
                tolerance = 1e-4 * scale + 1e-6 * largest[model]
            else:
                assert np.isfinite(value).all() and scale > 0
            np.testing.assert_allclose(
                jax[name], value, rtol=0, atol=tolerance, err_msg=name
            )
