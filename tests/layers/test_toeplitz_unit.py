"""TNN's gated Toeplitz unit against NumPy."""

import functools

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import Context, ToeplitzUnit
from remixer_tf.testing import check_sublayer
from tests.layers.mixers import (
    CAUSAL,
    LENGTH,
    RULES,
    WIDTH,
    built,
    check_equation,
    check_files,
    flops,
    inputs,
    sown,
    visible,
)
from tests.layers.test_gmlp import layer_norm

D_HIDDEN, D_POSITIONS, LAYERS, DECAY = 6, 5, 2, 0.9
METHODS = pytest.mark.parametrize("method", ["fft", "matmul"])


def make(**options):
    return ToeplitzUnit(D_HIDDEN, D_POSITIONS, LAYERS, DECAY, **options)


def weights_at(w, distance):
    """decay ** |d| f(d) for each channel, with the authors' form of f."""
    w = {x.removeprefix("positions/"): v for x, v in w.items() if "positions" in x}
    x = distance * w["first/kernel"][0] + w["first/bias"]
    for i in range(LAYERS + 1):
        x = layer_norm(x, w[f"norm_{i}/gamma"], w[f"norm_{i}/beta"])
        x = np.maximum(x, 0) @ w[f"linear_{i}/kernel"] + w[f"linear_{i}/bias"]
    return DECAY ** abs(distance) * x


def silu(x):
    return x / (1 + np.exp(-x))


@CAUSAL
@METHODS
def test_equation(method, causal):
    layer, w = built(make, method=method, causal=causal)
    x = inputs().astype("float64")
    u, v = (silu(x @ w[f"{n}/kernel"] + w[f"{n}/bias"]) for n in ("gate", "value"))
    matrix = np.array(
        [[weights_at(w, t - s) for s in range(LENGTH)] for t in range(LENGTH)]
    )
    mixed = np.einsum("tsd,bts,bsd->btd", matrix, visible(causal), v)
    check_equation(layer, u * mixed @ w["out/kernel"] + w["out/bias"])


@RULES
@METHODS
def test_rules(method, causal):
    check_sublayer(functools.partial(make, method=method), causal=causal, packs=False)


@pytest.mark.slow_on_jax
def test_any_length():
    """Rows of T at one length are those at another (section 3.4)."""
    layer, _ = built(make, causal=True)
    x = np.concatenate([inputs(i) for i in range(8)], axis=1)
    whole = np.array(layer(ops.convert_to_tensor(x), context=Context()))
    short = np.array(layer(ops.convert_to_tensor(x[:, :9]), context=Context()))
    np.testing.assert_allclose(whole[:, :9], short, atol=1e-5)


def test_weights_differ_between_distances_from_the_start():
    layer = make(name="layer")
    layer.build((None, None, WIDTH))
    weights = np.array(layer.positions(np.arange(1, 5)))
    assert (
        np.abs(np.diff(weights / DECAY ** np.arange(1, 5)[:, None], axis=0)) > 1e-4
    ).any()


def test_flops_and_pictures():
    layer, w = built(make, method="matmul")
    network = D_POSITIONS + LAYERS * D_POSITIONS**2 + D_POSITIONS * D_HIDDEN
    products = LENGTH * (3 * WIDTH * D_HIDDEN + LENGTH * D_HIDDEN)
    products += (2 * LENGTH - 1) * network
    assert flops(layer)[::2] == (2 * products, set())
    assert not flops(built(make)[0])[2]  # The transforms have a formula too.
    expected = [weights_at(w, 3 - s) for s in range(LENGTH)]
    np.testing.assert_allclose(sown(layer)[:, 3].T, expected, rtol=1e-4, atol=1e-5)
    assert layer.mixing_facts(LENGTH).filter.shape == (D_HIDDEN, 2 * LENGTH - 1)


@pytest.mark.slower
def test_files(tmp_path):
    check_files(functools.partial(make, method="matmul"), tmp_path)
