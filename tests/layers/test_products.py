"""Products whose gradients are written out on JAX, and both gradients in NumPy."""

import functools

import keras
import numpy as np
import pytest

from remixer_tf.layers.products import mix, project, repeat, scores
from tests.compiled import outputs_and_gradients


class Factors(keras.layers.Layer):
    """Two weights, and their product by a function."""

    def __init__(self, product, left, right):
        super().__init__()
        self._product = product
        self.left = self._factor("left", left)
        self.right = self._factor("right", right)

    def _factor(self, name, value):
        return self.add_weight(
            name=name, shape=value.shape, initializer=lambda shape, dtype: value
        )

    def call(self):
        return self._product(self.left, self.right)


@pytest.mark.parametrize(
    "product, left, right, equation",
    [
        (project, (2, 3), (3, 4), "pd,df->pf"),
        (project, (2, 5, 3), (3, 4), "btd,df->btf"),
        (project, (2, 5, 4), (4, 3), "btd,df->btf"),
        (scores, (2, 3, 5, 4), (2, 3, 6, 4), "bhtk,bhsk->bhts"),
        (
            functools.partial(mix, axes="hlbc"),
            *((2, 5, 5), (2, 5, 3, 4)),
            "hts,hsbc->htbc",
        ),
        (
            functools.partial(mix, axes="hbcl"),
            *((2, 5, 5), (2, 3, 4, 5)),
            "hts,hbcs->hbct",
        ),
    ],
)
def test_products_and_gradients_equal_numpy(product, left, right, equation):
    rng = np.random.default_rng(0)
    left, right = (rng.normal(size=s).astype("float32") for s in (left, right))
    layer = Factors(product, left, right)
    outputs, gradients = outputs_and_gradients(layer.call, layer)
    np.testing.assert_allclose(outputs, np.einsum(equation, left, right), atol=1e-5)
    # Of the sum of y / (1 + |y|).
    dy = 1 / (1 + np.abs(outputs)) ** 2
    factors, out = equation.split("->")
    one, two = factors.split(",")
    expected = (
        np.einsum(f"{out},{two}->{one}", dy, right),
        np.einsum(f"{one},{out}->{two}", left, dy),
    )
    for weight, value in zip((layer.left, layer.right), expected, strict=True):
        np.testing.assert_allclose(gradients[weight.path], value, atol=1e-5)


def test_repeated_values_take_the_sum_of_all_examples_gradients():
    rng = np.random.default_rng(0)
    bias = rng.normal(size=(1, 3, 5, 5)).astype("float32")
    examples = rng.normal(size=(4, 3, 5, 5)).astype("float32")
    layer = Factors(lambda b, x: x + repeat(b, len(examples)), bias, examples)
    outputs, gradients = outputs_and_gradients(layer.call, layer)
    np.testing.assert_allclose(outputs, examples + bias, atol=1e-6)
    dy = 1 / (1 + np.abs(outputs)) ** 2
    np.testing.assert_allclose(
        gradients[layer.left.path], dy.sum(axis=0, keepdims=True), atol=1e-5
    )
