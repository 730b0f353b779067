"""Random Synthesizers against NumPy."""

import functools

import numpy as np
import pytest

from remixer_tf.layers import RandomSynthesizer
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
    sown,
    visible,
)

HEADS, D_KV = 2, 3
RANKS = pytest.mark.parametrize("rank", [None, 2])


def make(rank=None, **options):
    return RandomSynthesizer(HEADS, D_KV, rank=rank, **options)


def matrix(w):
    if "mixing/mixing_matrix" in w:
        return w["mixing/mixing_matrix"]
    return w["mixing/targets"] @ w["mixing/sources"].swapaxes(1, 2)


@CAUSAL
@RANKS
def test_equations(rank, causal):
    layer, w = built(make, rank=rank, causal=causal, max_length=LENGTH + 2)
    value = inputs() @ w["value/kernel"]
    logits = matrix(w)[:, :LENGTH, :LENGTH]
    heads = [
        softmax(np.broadcast_to(r, (2, LENGTH, LENGTH)), visible(causal)) @ v
        for r, v in zip(logits, np.split(value, HEADS, axis=-1), strict=True)
    ]
    expected = np.concatenate(heads, axis=-1) @ w["out/kernel"]
    check_equation(layer, expected)


@RULES
@RANKS
def test_rules(rank, causal):
    check_sublayer(functools.partial(make, rank=rank), causal=causal, max_length=9)


def test_parameters():
    """Two projections, and R or its factors (Synthesizer, Table 1)."""
    n, projections = 16, 2 * WIDTH * HEADS * D_KV
    for rank, expected in ((None, n * n), (2, 2 * n * 2)):
        _, w = built(make, rank=rank, max_length=n)
        assert sum(x.size for x in w.values()) == projections + HEADS * expected


def test_flops_and_pictures():
    layer, w = built(make, max_length=LENGTH)
    inner = HEADS * D_KV
    products = 2 * LENGTH * (2 * WIDTH * inner + LENGTH * inner)
    assert flops(layer)[::2] == (products, set())
    np.testing.assert_allclose(sown(layer), softmax(matrix(w)), atol=1e-6)
    assert layer.mixing.mixing_facts(LENGTH).symbol == "softmax(H)"


@pytest.mark.slower
def test_files(tmp_path):
    check_files(functools.partial(make, rank=2), tmp_path)
