"""The masked mixer's heads against NumPy."""

import numpy as np
import pytest

from remixer_tf.layers import MaskedMixer
from remixer_tf.testing import check_sublayer
from tests.layers.mixers import (
    CAUSAL,
    LENGTH,
    RULES,
    built,
    check_equation,
    check_files,
    inputs,
    sown,
    visible,
)

HEADS, D_KV = 2, 3


def make(**options):
    return MaskedMixer(HEADS, D_KV, **options)


@CAUSAL
def test_equation(causal):
    layer, w = built(make, causal=causal, max_length=LENGTH + 2)
    values = np.split(inputs() @ w["value/kernel"] + w["value/bias"], HEADS, axis=-1)
    heads = [
        matrix[:LENGTH, :LENGTH] * visible(causal) @ value + bias[:LENGTH, None]
        for matrix, bias, value in zip(
            w["mixing/mixing_matrix"], w["mixing/spatial_bias"], values, strict=True
        )
    ]
    expected = np.concatenate(heads, axis=-1) @ w["out/kernel"] + w["out/bias"]
    check_equation(layer, expected)


@RULES
def test_rules(causal):
    check_sublayer(make, causal=causal, max_length=9)


def test_pictures_show_a_lower_triangle():
    layer, w = built(make, causal=True, max_length=LENGTH)
    np.testing.assert_allclose(sown(layer), np.tril(w["mixing/mixing_matrix"]))


@pytest.mark.slower
def test_files(tmp_path):
    check_files(make, tmp_path)
