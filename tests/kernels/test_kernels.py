"""Kernels against their references, and their gradients against forward mode."""

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.kernels import (
    fft_product,
    largest,
    mix,
    on_cpu,
    project,
    scores,
    take_rows,
)
from remixer_tf.objectives.losses import CrossEntropy
from tests.compiled import outputs_and_gradients, slow_on_jax
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


ORDER, INVERSE = np.array([2, 0]), np.array([[1], [0], [0]])
VALID = np.array([[True], [False], [True]])

# name: kernel, reference, shapes of two factors
KERNELS = {
    "project rows": (project.project, project.reference, (2, 3), (3, 4)),
    "project": (project.project, project.reference, (2, 5, 3), (3, 4)),
    "scores": (scores.scores, scores.reference, (2, 3, 5, 4), (2, 3, 6, 4)),
    "mix": (mix.mix, mix.reference, (2, 5, 5), (2, 3, 4, 5)),
    "fft_product": (
        fft_product.fft_product,
        fft_product.reference,
        *((2, 9), (2, 3, 4, 5)),
    ),
    "take_rows": (
        lambda x, y: y * take_rows.take_rows(1.0 * x, ORDER, INVERSE, VALID),
        lambda x, y: y * take_rows.reference(x, ORDER),
        *((3, 4), (2, 4)),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_and_gradients_equal_the_reference(name):
    *functions, left, right = KERNELS[name]
    rng = np.random.default_rng(0)
    values = [rng.normal(size=shape).astype("float32") for shape in (left, right)]
    (y, gradients), (expected, expected_gradients) = (
        outputs_and_gradients(layer.call, layer)
        for layer in (Factors(function, *values) for function in functions)
    )
    np.testing.assert_allclose(y, expected, atol=1e-5)
    for found, wanted in zip(
        gradients.values(), expected_gradients.values(), strict=True
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_largest_of_equal_values_is_the_first():
    x = np.array([[0.0, 3.0, 3.0], [-1.0, -2.0, -1.0], [2.0, 0.0, 5.0]], "float32")
    x = ops.convert_to_tensor(x)
    index = np.array(largest.largest(x))
    np.testing.assert_array_equal(index, np.array(ops.argmax(x, axis=-1)))


@pytest.mark.parametrize("cpu", [True, False])
def test_the_fft_is_for_long_sequences_on_cpus(cpu, monkeypatch):
    devices = ["cpu:0"] if cpu else ["gpu:0"]
    monkeypatch.setattr(keras.distribution, "list_devices", lambda: devices)
    assert on_cpu() == cpu
    assert not fft_product.is_chosen(1023)
    assert fft_product.is_chosen(1024) == cpu


def on_jax():
    """JAX, for tests of what only it has."""
    if keras.backend.backend() != "jax":
        pytest.skip("forward mode and maps are JAX's")
    import jax

    return jax


@pytest.mark.slow_on_jax
@pytest.mark.parametrize(
    "name", slow_on_jax(KERNELS, but=[k for k in KERNELS if k != "fft_product"])
)
def test_forward_mode_maps_and_second_derivatives_on_jax(name):
    """Of `sum(tanh(f(x, y)))`: each by differences, and what is mapped one by one."""
    jax = on_jax()
    function, _, *shapes = KERNELS[name]
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


@pytest.mark.parametrize("kind", slow_on_jax(["t5_1_1", "remixer", "gmlp"], but=[]))
def test_a_model_has_a_forward_mode_on_jax(kind):
    """The slope of the loss along a direction, of a model with every operation."""
    jax = on_jax()
    model = tiny_model(kind, num_layers=1)
    batch = tiny_batch()

    def loss(values):
        with keras.StatelessScope(zip(model.trainable_variables, values, strict=True)):
            logits = model(batch)
        sums = CrossEntropy(z_loss=1e-4, label_smoothing=0.1).sums(logits, batch)
        return sums["objective"]

    point = [variable.value for variable in model.trainable_variables]
    rng = np.random.default_rng(0)
    direction = [rng.normal(size=p.shape).astype("float32") for p in point]
    _, slope = jax.jit(lambda p, d: jax.jvp(loss, (p,), (d,)))(point, direction)
    gradients = jax.jit(jax.grad(loss))(point)
    expected = sum(
        float((g * d).sum()) for g, d in zip(gradients, direction, strict=True)
    )
    assert slope == pytest.approx(expected, rel=1e-4)
