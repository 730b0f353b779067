"""Eigen multiplies in training steps on JAX where YNNPACK is the slower one."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import jax
import jax.numpy as jnp

from remixer_tf.engines.jax import compiler_options as module


def options(*features):
    module.programs.processor = lambda: f"flags : {' '.join(features)}"
    module.compiler_options.cache_clear()
    return module.compiler_options()


found = options("avx", "avx2", "fma")
x, w = jnp.ones((64, 512)), jnp.ones((512, 512))
texts = [
    jax.jit(lambda x, w: (x + 1) @ w, compiler_options=options)
    .lower(x, w)
    .compile()
    .as_text()
    for options in (None, found)
]
assert ["ynn" in text for text in texts] == [True, False]
assert not options("avx2", "avx512f") and not options("sse4_2") and not options()
module._YNNPACK = "no_such_option"
assert not options("avx2")
module._YNNPACK = "xla_cpu_multi_thread_eigen"
import os
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=true"
assert not options("avx2")
"""


@pytest.mark.slow
def test_which_processors():
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    environment["XLA_FLAGS"] = ""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
