"""TriMLP's mixer against NumPy."""

import numpy as np
import pytest

from remixer_tf.layers import TriangularMixing
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
    softmax,
    sown,
)

SESSION, LONGEST = 4, 8


def make(**options):
    return TriangularMixing(SESSION, **{"max_length": LONGEST, **options})


def matrix(kernel, session):
    """`[source, target]` weights that sum to 1 over a source's targets."""
    number = np.arange(LONGEST) // session
    seen = np.triu(np.equal.outer(number, number))
    return softmax(kernel[0], seen)


def test_equation():
    layer, w = built(make)
    x = inputs() * PADDING[..., None]
    for name, session in (("global", LONGEST), ("local", SESSION)):
        weights = matrix(w[f"{name}/kernel"], session)[:LENGTH, :LENGTH]
        x = 1 / (1 + np.exp(-np.einsum("st,bsd->btd", weights, x)))
        expected, x = x, x * PADDING[..., None]
    check_equation(layer, expected)


def test_all_weights_are_equal_at_first():
    layer = make(name="layer")
    layer.build((None, None, WIDTH))
    (found,) = sown(layer)  # the last that is sown: the local matrix
    expected = [[1 / (SESSION - s % SESSION) for s in range(4)]]
    np.testing.assert_allclose(found[3:4, :4], expected, rtol=1e-6)
    assert (found[4:, :4] == 0).all()


@pytest.mark.slow
def test_rules():
    check_sublayer(make, causal=True, max_length=LONGEST)


def test_sessions_make_up_the_length():
    with pytest.raises(ValueError, match="Received: max_length=10, session=4"):
        built(make, max_length=10)


def test_flops():
    layer, _ = built(make)
    assert flops(layer)[::2] == (2 * 2 * LENGTH * LENGTH * WIDTH, set())


@pytest.mark.slower
def test_files(tmp_path):
    def of_length(**options):
        return make(**{**options, "max_length": LONGEST})

    check_files(of_length, tmp_path)
