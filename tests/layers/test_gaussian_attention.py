"""Hard-coded Gaussian attention against SciPy's density."""

import numpy as np
import pytest
from scipy.stats import norm

from remixer_tf.layers import GaussianAttention
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

HEADS, D_KV = 4, 3


def make(**options):
    return GaussianAttention(HEADS, D_KV, deviation=1.5, **options)


@CAUSAL
def test_equation(causal):
    layer, w = built(make, causal=causal, max_length=LENGTH + 1)
    assert {*w} == {"value/kernel", "out/kernel"}
    places = np.arange(LENGTH)
    heads = []
    values = np.split(inputs() @ w["value/kernel"], HEADS, axis=-1)
    offsets = [-1, -1, 0, 0] if causal else [-1, -1, 1, 1]
    for value, offset in zip(values, offsets, strict=True):
        weights = norm.pdf(places[None], loc=places[:, None] + offset, scale=1.5)
        heads.append(weights * visible(causal) @ value)
    check_equation(layer, np.concatenate(heads, axis=-1) @ w["out/kernel"])


@RULES
def test_rules(causal):
    check_sublayer(make, causal=causal, max_length=9)


def test_offsets_are_shared_evenly():
    with pytest.raises(ValueError, match=r"num_heads=4, offsets=\(-1, 0, 1\)"):
        built(make, offsets=(-1, 0, 1), max_length=LENGTH)
    for offsets in np.array([2]), [2]:
        layer, _ = built(make, offsets=offsets, max_length=LENGTH)
    assert sown(layer)[3, 0].argmax() == 2  # The first token looks two ahead.


def test_flops_and_pictures():
    layer, _ = built(make, max_length=LENGTH)
    inner = HEADS * D_KV
    assert flops(layer)[::2] == (2 * LENGTH * inner * (2 * WIDTH + LENGTH), set())
    facts = layer.mixing.mixing_facts(LENGTH)
    expected = norm.pdf(np.arange(1 - LENGTH, LENGTH), -1, 1.5)
    np.testing.assert_allclose(np.array(facts.filter)[0], expected, rtol=1e-5)


@pytest.mark.slower
def test_files(tmp_path):
    check_files(make, tmp_path)
