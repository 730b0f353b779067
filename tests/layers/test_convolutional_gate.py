"""cgMLP's gate against NumPy."""

import functools

import numpy as np
import pytest

from remixer_tf.layers import ConvolutionalGate, GatedMLP, TinyAttention
from remixer_tf.testing import check_sublayer
from tests.layers.mixers import (
    CAUSAL,
    LENGTH,
    PADDING,
    RULES,
    WIDTH,
    built,
    check_equation,
    check_files,
    flops,
    inputs,
    sown,
)
from tests.layers.test_gmlp import gelu, layer_norm

D_FF, SIZE = 12, 3


def make(**options):
    gate = functools.partial(ConvolutionalGate, kernel_size=SIZE)
    return GatedMLP(D_FF, gate, **options)


@CAUSAL
def test_equation(causal):
    layer, w = built(make, causal=causal)
    z = gelu(inputs() @ w["wi/kernel"] + w["wi/bias"])
    z_1, z_2 = np.split(z, 2, axis=-1)
    z_2 = layer_norm(z_2, w["gating/norm/gamma"], w["gating/norm/beta"])
    z_2 = np.pad(z_2 * PADDING[..., None], [(0, 0), (SIZE, SIZE), (0, 0)])
    first = SIZE - (SIZE - 1 if causal else SIZE // 2)
    f = w["gating/mixing/bias"] + sum(
        w["gating/mixing/kernel"][j] * z_2[:, first + j : first + j + LENGTH]
        for j in range(SIZE)
    )
    check_equation(layer, z_1 * f @ w["wo/kernel"] + w["wo/bias"])


@RULES
def test_rules(causal):
    check_sublayer(make, causal=causal)


def test_the_gate_starts_open():
    layer = make(name="layer")
    layer.build((None, None, WIDTH))
    np.testing.assert_allclose(sown(layer), 0, atol=1e-5)
    assert (layer.gating.mixing.bias.numpy() == 1).all()


def test_options_of_a_matrix_are_refused():
    for name, value in {"toeplitz": True, "num_mixing_heads": 2}.items():
        with pytest.raises(ValueError, match=f"has no {name}.*{name}={value}. Leave"):
            ConvolutionalGate(SIZE, **{name: value})


@pytest.mark.slow
def test_with_an_attention_next_to_it():
    """Branchformer has both branches; here the attention gates too."""
    attention = functools.partial(TinyAttention, d_kv=4)
    check_sublayer(functools.partial(make, attention=attention), causal=True)


def test_flops():
    layer, _ = built(make)
    products, _, uncounted = flops(layer)
    assert products == 2 * LENGTH * WIDTH * (D_FF + D_FF // 2) and not uncounted


@pytest.mark.slower
def test_files(tmp_path):
    check_files(make, tmp_path)
