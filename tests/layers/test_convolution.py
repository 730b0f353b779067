"""Lightweight and dynamic convolutions against NumPy."""

import functools

import numpy as np
import pytest

from remixer_tf.layers import DynamicConvolution, LightweightConvolution
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
    softmax,
    sown,
)

HEADS, SIZES = 2, pytest.mark.parametrize("size", [3, 4])
KINDS = pytest.mark.parametrize("kind", [LightweightConvolution, DynamicConvolution])


def kernels(w, z, size):
    """`[batch, length, heads, size]`."""
    if "kernels" in w:
        return np.broadcast_to(softmax(w["kernels"]), (*z.shape[:2], HEADS, size))
    return softmax((z @ w["kernels/kernel"]).reshape(*z.shape[:2], HEADS, size))


@CAUSAL
@SIZES
@KINDS
def test_equations(kind, size, causal):
    """`O[i, c] = sum_j W[c, j] X[i + j - ceil((k + 1) / 2), c]` (Wu et al. 2019)."""
    layer, w = built(kind, num_heads=HEADS, kernel_size=size, causal=causal)
    z, gate = np.split(inputs() @ w["wi/kernel"] + w["wi/bias"], 2, axis=-1)
    z = z / (1 + np.exp(-gate))
    weights = kernels(w, z, size)
    real = z * PADDING[..., None]
    y = np.zeros_like(z)
    for i in range(LENGTH):
        for j in range(1, size + 1):
            source = i + j - (size if causal else -(-(size + 1) // 2))
            if 0 <= source < LENGTH:
                each = np.repeat(weights[:, i, :, j - 1], WIDTH // HEADS, axis=-1)
                y[:, i] += each * real[:, source]
    check_equation(layer, y @ w["out/kernel"] + w["out/bias"])


@RULES
@KINDS
def test_rules(kind, causal):
    make = functools.partial(kind, num_heads=HEADS, kernel_size=3)
    check_sublayer(make, causal=causal)


def test_heads_share_channels():
    with pytest.raises(ValueError, match="num_heads=3, channels=8"):
        built(LightweightConvolution, num_heads=3, kernel_size=3)


@pytest.mark.parametrize("longest", [9, 300])
def test_the_cache_has_the_kernel_s_width(longest):
    layer, _ = built(DynamicConvolution, num_heads=HEADS, kernel_size=3, causal=True)
    assert layer.init_cache(2, longest, None)["inputs"].shape == (2, 3, WIDTH)


def test_flops():
    """k products and k - 1 sums for each number, GLU's product, two projections."""
    layer, _ = built(LightweightConvolution, num_heads=HEADS, kernel_size=5)
    products, rest, uncounted = flops(layer)
    size = LENGTH * WIDTH
    assert products == 2 * 3 * size * WIDTH and not uncounted
    of_softmax, of_biases, of_gate = 5 * HEADS * 5, 3 * size, 2 * size
    assert rest == (5 + 4) * size + of_softmax + of_biases + of_gate


@KINDS
def test_the_work_is_linear_in_the_length(kind):
    """Wu et al. 2019, section 1: O(k n), and not O(n^2)."""
    layer, _ = built(kind, num_heads=HEADS, kernel_size=3)
    of_kernels = 5 * HEADS * 3 * (kind is LightweightConvolution)  # one for all tokens
    once, twice = (sum(flops(layer, n)[:2]) - of_kernels for n in (8, 16))
    assert twice == 2 * once


def test_what_pictures_show():
    options = {"num_heads": HEADS, "kernel_size": 3, "causal": True}
    layer, w = built(LightweightConvolution, **options)
    shown = sown(layer)
    np.testing.assert_allclose(shown[:, 4, 2:5], softmax(w["kernels"]), rtol=1e-5)
    assert (shown[:, 4, :2] == 0).all() and (shown[:, 4, 5:] == 0).all()
    layer, _ = built(DynamicConvolution, **options)
    shown = sown(layer, "attention")
    assert shown.shape == (2, HEADS, LENGTH, LENGTH)
    np.testing.assert_allclose(shown[:, :, 3:].sum(-1), 1.0, rtol=1e-5)


@pytest.mark.slower
@KINDS
def test_files(kind, tmp_path):
    check_files(functools.partial(kind, num_heads=HEADS, kernel_size=3), tmp_path)
