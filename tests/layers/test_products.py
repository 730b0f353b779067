"""Products whose gradients are written out on JAX, and both gradients in NumPy."""

import functools

import keras
import numpy as np
import pytest

from remixer_tf.layers.dispatch import take_rows
from remixer_tf.layers.products import mix, project, repeat, scores
from remixer_tf.objectives.losses import CrossEntropy
from tests.compiled import outputs_and_gradients
from tests.models.tiny import tiny_batch, tiny_model


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


def on_jax():
    """JAX, for tests of what only it has."""
    if keras.backend.backend() != "jax":
        pytest.skip("forward mode and maps are JAX's")
    import jax

    return jax


OPERATIONS = {
    "project": (project, (2, 5, 3), (3, 4)),
    "scores": (scores, (2, 3, 5, 4), (2, 3, 6, 4)),
    "mix": (functools.partial(mix, axes="hlbc"), (2, 5, 5), (2, 5, 3, 4)),
    "repeat": (lambda x, y: repeat(x, 4) * y, (1, 3), (4, 3)),
    "take_rows": (
        lambda x, y: y * take_rows(x, np.array([2, 0]), np.array([[1], [0], [0]]),
                                   np.array([[True], [False], [True]])),
        (3, 4),
        (2, 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPERATIONS)
def test_forward_mode_maps_and_second_derivatives_on_jax(name):
    """Of `sum(tanh(f(x, y)))`: each by differences, and what is mapped one by one."""
    jax = on_jax()
    function, *shapes = OPERATIONS[name]
    rng = np.random.default_rng(0)

    def draw():
        return [rng.normal(size=shape).astype("float32") for shape in shapes]

    def loss(factors):
        return jax.numpy.tanh(function(*factors)).sum()

    point, direction = draw(), draw()
    gradient = jax.grad(loss)

    def dot(one, other):
        return sum(float((a * b).sum()) for a, b in zip(one, other, strict=True))

    def difference(f, step=1e-2):
        ahead, behind = (
            f([p + s * d for p, d in zip(point, direction, strict=True)])
            for s in (step, -step)
        )
        return jax.tree.map(lambda a, b: (a - b) / (2 * step), ahead, behind)

    _, slope = jax.jvp(loss, (point,), (direction,))
    assert slope == pytest.approx(dot(gradient(point), direction), rel=1e-4)
    assert slope == pytest.approx(float(difference(loss)), rel=1e-2, abs=1e-2)
    _, change = jax.jvp(gradient, (point,), (direction,))
    for found, expected in zip(change, difference(gradient), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-2 * np.abs(expected).max())
    points = [np.stack(values) for values in zip(point, direction, strict=True)]
    for axes in ([0, 0], [0, None], [None, 0]):
        mapped = jax.vmap(gradient, (axes,))(
            [p if a == 0 else p[0] for p, a in zip(points, axes, strict=True)]
        )
        for i in range(2):
            one = [p[i if a == 0 else 0] for p, a in zip(points, axes, strict=True)]
            for found, expected in zip(mapped, gradient(one), strict=True):
                np.testing.assert_allclose(found[i], expected, atol=1e-5)


def test_a_model_has_a_forward_mode_on_jax():
    """The slope of the loss along a direction, of a model with every operation."""
    jax = on_jax()
    for kind in ("t5_1_1", "remixer", "gmlp"):
        model = tiny_model(kind, num_layers=1)
        batch = tiny_batch()

        def loss(values, model=model, batch=batch):
            with keras.StatelessScope(
                zip(model.trainable_variables, values, strict=True)
            ):
                logits = model(batch)
            sums = CrossEntropy(z_loss=1e-4, label_smoothing=0.1)(logits, batch)
            return sums["objective"]

        point = [variable.value for variable in model.trainable_variables]
        rng = np.random.default_rng(0)
        direction = [rng.normal(size=p.shape).astype("float32") for p in point]
        _, slope = jax.jvp(loss, (point,), (direction,))
        expected = sum(
            float((g * d).sum())
            for g, d in zip(jax.grad(loss)(point), direction, strict=True)
        )
        assert slope == pytest.approx(expected, rel=1e-4), kind
