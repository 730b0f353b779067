"""HyperMixer's token mixing against NumPy."""

import functools

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import Context, HyperMixing
from remixer_tf.models import TransformerStack
from remixer_tf.testing import check_sublayer
from tests.layers.harness import assert_equals
from tests.layers.mixers import (
    LENGTH,
    PADDING,
    WIDTH,
    built,
    check_equation,
    check_files,
    flops,
    inputs,
)
from tests.layers.test_gmlp import gelu, layer_norm

D_HIDDEN = 5
TIED = pytest.mark.parametrize("tied", [False, True])


def positions(length):
    """Vaswani et al. 2017, section 3.5, number by number."""
    p = np.zeros((length, WIDTH))
    for t in range(length):
        for i in range(WIDTH // 2):
            angle = t / 10000 ** (2 * i / WIDTH)
            p[t, 2 * i], p[t, 2 * i + 1] = np.sin(angle), np.cos(angle)
    return p


def mixed(w, x, tied=False):
    """`LayerNorm(W_2 gelu(W_1^T X))` of x, float64 `[batch, length, WIDTH]`."""
    located = x + positions(x.shape[1])

    def rows(i):
        hidden = gelu(located @ w[f"wi_{i}/kernel"] + w[f"wi_{i}/bias"])
        return hidden @ w[f"wo_{i}/kernel"] + w[f"wo_{i}/bias"]

    hidden = gelu(rows(0).swapaxes(1, 2) @ x)
    y = rows(0 if tied else 1) @ hidden
    return layer_norm(y, w["norm/gamma"], w["norm/beta"])


@TIED
def test_equation(tied):
    layer, w = built(HyperMixing, d_hidden=D_HIDDEN, tied=tied)
    x = inputs().astype("float64") * PADDING[..., None]
    check_equation(layer, mixed(w, x, tied), tolerance=1e-4)


def test_sums_may_exceed_float16():
    """They do over many tokens; the norm of them does not."""
    layer, w = built(HyperMixing, d_hidden=D_HIDDEN, dtype="mixed_float16")
    x = 30 * np.tile(inputs()[:1], (1, 200, 1)).astype("float16")
    y = np.array(layer(ops.convert_to_tensor(x), context=Context()))
    assert_equals(y, mixed(w, x.astype("float64")), 0.01)


@pytest.mark.slow
@TIED
def test_rules(tied):
    make = functools.partial(HyperMixing, d_hidden=D_HIDDEN, tied=tied)
    check_sublayer(make, packs=False, tolerance=1e-4)


def test_a_decoder_is_refused():
    make = functools.partial(HyperMixing, d_hidden=D_HIDDEN)
    with pytest.raises(ValueError, match="HyperMixer has no form that hides later"):
        TransformerStack({"mixing": make}, num_layers=1, causal=True)


def test_flops():
    """Linear in the length, section 3.3."""
    layer, _ = built(HyperMixing, d_hidden=D_HIDDEN)
    networks = 2 * (WIDTH * WIDTH + WIDTH * D_HIDDEN)
    products = 2 * LENGTH * (networks + 2 * WIDTH * D_HIDDEN)
    assert flops(layer)[::2] == (products, set())
    assert flops(layer, 4 * LENGTH)[0] == 4 * products


@pytest.mark.slower
def test_files(tmp_path):
    check_files(functools.partial(HyperMixing, d_hidden=D_HIDDEN), tmp_path, False)
