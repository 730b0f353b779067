"""FNet's mixing against NumPy's Fourier transform."""

import functools

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import Context, FourierMixing
from remixer_tf.models import TransformerStack
from remixer_tf.testing import check_sublayer
from tests.layers.mixers import (
    LENGTH,
    PADDING,
    WIDTH,
    built,
    check_equation,
    check_files,
    flops,
    inputs,
    sown,
)

METHODS = pytest.mark.parametrize("method", ["fft", "matmul"])


@METHODS
def test_the_paper_s_equation(method):
    layer, weights = built(FourierMixing, method=method)
    assert not weights
    x = inputs().astype("float64") * PADDING[..., None]
    check_equation(layer, np.fft.fft2(x).real, tolerance=1e-5)


@METHODS
def test_sums_may_exceed_float16(method):
    """n equal tokens x have the sum n x, and float16 ends at 65,504."""
    layer = FourierMixing(method, dtype="mixed_float16")
    x = np.zeros((1, 400, WIDTH), "float16")
    x[..., 0] = 300.0
    y = np.array(layer(ops.convert_to_tensor(x), context=Context()))
    np.testing.assert_allclose(y[0, 0], 400 * 300.0, rtol=1e-5)


@pytest.mark.slow
@METHODS
def test_rules(method):
    check_sublayer(functools.partial(FourierMixing, method=method), packs=False)


def test_flops():
    """5 N log2 N of a transform of N complex numbers; or four products of matrices."""
    layer, _ = built(FourierMixing)
    products, rest, uncounted = flops(layer)
    size = LENGTH * WIDTH
    assert (products, uncounted) == (0, set()) and rest == int(5 * size * np.log2(size))
    layer, _ = built(FourierMixing, method="matmul")
    assert flops(layer)[0] == 2 * 2 * size * (WIDTH + LENGTH)


def test_what_pictures_show():
    layer, _ = built(FourierMixing)
    expected = np.fft.fft(np.eye(LENGTH)).real
    np.testing.assert_allclose(sown(layer)[0], expected, atol=1e-6)
    assert layer.mixing_facts(LENGTH).signed


def test_a_decoder_is_refused():
    with pytest.raises(ValueError, match="FNet has no form that hides later ones"):
        TransformerStack({"mixing": FourierMixing}, num_layers=1, causal=True)
    with pytest.raises(ValueError, match="FNet has no form"):
        FourierMixing(causal=True)


@pytest.mark.slower
def test_files(tmp_path):
    check_files(functools.partial(FourierMixing, method="matmul"), tmp_path, False)
