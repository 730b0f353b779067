"""Eigen multiplies where YNNPACK is the slower one, and nobody else is told so."""

import os
import subprocess
import sys
from unittest import mock

import pytest

from remixer_tf.engines import xla_products

CPUINFO = "processor : 0\nflags : fpu {}\n"
TENSORFLOW = """
import os
import tensorflow as tf
from remixer_tf.engines import xla_products
Untied = type("Model", (), {"tied_logits": False})
Tied = type("Model", (), {"tied_logits": True})
before = os.environ.get("XLA_FLAGS")
assert xla_products.tell_tensorflow(Untied()) == xla_products.OPTION
assert xla_products.tell_tensorflow(Tied()) == xla_products.OPTION
assert os.environ.get("XLA_FLAGS") == before
x = tf.random.stateless_uniform((8, 64), (1, 2))
y = tf.function(tf.matmul, jit_compile=True)(x, tf.transpose(x))
tf.debugging.assert_near(y, tf.matmul(x, x, transpose_b=True))
"""
JAX = """
import jax.numpy as jnp
import jax
from remixer_tf.engines.jax.engine import _compiler_options
x = jnp.ones((64, 512))
w = jnp.ones((512, 512))
texts = [
    jax.jit(lambda x, w: (x + 1) @ w, compiler_options=options).lower(x, w).compile()
    .as_text() for options in (None, _compiler_options(True))
]
assert ["ynn" in text for text in texts] == [True, False], texts
"""


@pytest.fixture
def processor(monkeypatch):
    """Answers for a processor with some flags, and for a value of XLA_FLAGS."""

    def are_eigens(flags, variable=""):
        monkeypatch.setattr("builtins.open", lambda path: open_text(flags))
        monkeypatch.setenv("XLA_FLAGS", variable)
        xla_products.are_eigens.cache_clear()
        return xla_products.are_eigens()

    def open_text(flags):
        import io

        return io.StringIO(CPUINFO.format(flags))

    yield are_eigens
    xla_products.are_eigens.cache_clear()


def test_which_processors(processor):
    assert processor("avx avx2 fma")
    tied, untied = (mock.Mock(tied_logits=tied) for tied in (True, False))
    assert xla_products.suit(untied) and not xla_products.suit(tied)
    assert not processor("avx2 avx512f") and not processor("sse4_2")
    assert not processor("avx2", f"--{xla_products.OPTION}=LIBRARY_FUSION_TYPE_DOT")


def process(code, **variables):
    open_cpuinfo = (
        "import builtins, io\n"
        "whole = builtins.open\n"
        "text = 'flags : avx2'\n"
        "builtins.open = lambda path, *a, **k: io.StringIO(text) if path == "
        "'/proc/cpuinfo' else whole(path, *a, **k)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", open_cpuinfo + code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_each_engine_is_told():
    process(TENSORFLOW, XLA_FLAGS="--xla_cpu_multi_thread_eigen=true")
    process(JAX, XLA_FLAGS="", KERAS_BACKEND="jax", JAX_PLATFORMS="cpu")
