"""Dense Synthesizers against NumPy."""

import functools

import numpy as np
import pytest

from remixer_tf.layers import DenseSynthesizer
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
    softmax,
    visible,
)

HEADS, D_KV, D_HIDDEN, LONGEST = 2, 3, 5, 8
FACTORS = pytest.mark.parametrize("factor", [None, 2])


def make(factor=None, **options):
    return DenseSynthesizer(HEADS, D_KV, d_hidden=D_HIDDEN, factor=factor, **options)


def function(w, part, x):
    """`W_2 relu(W_1 x + b_1) + b_2` of each head: a list of `[batch, length, n]`."""
    hidden = np.maximum(x @ w[f"wi_{part}/kernel"] + w[f"wi_{part}/bias"], 0)
    return [
        z @ wo + bias
        for z, wo, bias in zip(
            np.split(hidden, HEADS, axis=-1),
            w[f"wo_{part}"],
            w[f"bias_{part}"],
            strict=True,
        )
    ]


@CAUSAL
@FACTORS
def test_equations(factor, causal):
    layer, w = built(make, factor=factor, causal=causal, max_length=LONGEST)
    x = inputs().astype("float64")
    logits = function(w, 0, x)
    if factor:
        logits = [
            np.stack([a[..., j // factor] * b[..., j % factor] for j in range(LONGEST)])
            for a, b in zip(logits, function(w, 1, x), strict=True)
        ]
        logits = [z.transpose(1, 2, 0) for z in logits]
    heads = [
        softmax(z[..., :LENGTH], visible(causal)) @ v
        for z, v in zip(
            logits, np.split(x @ w["value/kernel"], HEADS, axis=-1), strict=True
        )
    ]
    check_equation(layer, np.concatenate(heads, axis=-1) @ w["out/kernel"])


@RULES
@FACTORS
def test_rules(factor, causal):
    make_it = functools.partial(make, factor=factor)
    check_sublayer(make_it, causal=causal, max_length=LONGEST)


def test_a_factor_divides_the_length():
    with pytest.raises(ValueError, match="Received: max_length=8, factor=3"):
        built(make, factor=3, max_length=LONGEST)


def test_flops():
    layer, _ = built(make, max_length=LONGEST)
    inner, hidden = HEADS * D_KV, HEADS * D_HIDDEN
    products = WIDTH * (2 * inner + hidden) + hidden * LONGEST + LENGTH * inner
    assert flops(layer)[::2] == (2 * LENGTH * products, set())


@pytest.mark.slower
def test_files(tmp_path):
    def of_length(factor, **options):
        return make(factor, **{**options, "max_length": LONGEST})

    check_files(functools.partial(of_length, 2), tmp_path)
