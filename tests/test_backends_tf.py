"""TensorFlow and JAX give the same outputs from the same weights."""

import os
import pathlib
import subprocess
import sys

import numpy as np

from tests.backend_outputs import outputs


def test_jax_equals_tensorflow(tmp_path):
    """Within 1e-5 of the largest output."""
    path = tmp_path / "jax.npz"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.backend_outputs", path],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        cwd=pathlib.Path(__file__).parent.parent,
        stderr=subprocess.PIPE,
        text=True,
    )
    ours = outputs()
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    with np.load(path) as jax:
        assert set(jax) == set(ours) and len(ours) > 100
        for name, y in ours.items():
            assert np.isfinite(y).all()
            scale = np.abs(y).max()
            assert scale > 0
            np.testing.assert_allclose(
                jax[name] / scale, y / scale, rtol=0, atol=1e-5, err_msg=name
            )
