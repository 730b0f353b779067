"""FLOPs of Keras' own layers and operations, by arithmetic, on both engines."""

import keras
import numpy as np
import pytest
from keras import layers, ops

pytestmark = pytest.mark.quick_on_jax
ROWS, LENGTH, WIDTH = 2, 16, 4


def count(function, *shapes):
    """The `Products` of a function of float32 tensors."""
    if keras.backend.backend() == "jax":
        import jax

        from remixer_tf.engines.jax.flops import product_flops

        inputs = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
        return product_flops(jax.make_jaxpr(function)(*inputs).jaxpr)
    import tensorflow as tf

    from remixer_tf.engines.tensorflow.flops import product_flops

    inputs = [tf.TensorSpec(shape, "float32") for shape in shapes]
    traced = tf.function(function, autograph=False).get_concrete_function(*inputs)
    return product_flops(traced)


def count_training(layer, shape):
    """The `Products` of a layer's call, and of the gradients by weights and inputs."""
    layer.build(shape)
    weights = [variable.value for variable in layer.trainable_variables]
    states = [variable.value for variable in layer.non_trainable_variables]

    def loss(inputs, *weights):
        outputs, _ = layer.stateless_call(weights, states, inputs)
        return ops.sum(ops.square(outputs))

    def gradients(*values):
        if keras.backend.backend() == "jax":
            import jax

            return jax.grad(loss, argnums=range(len(values)))(*values)
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(values)
            value = loss(*values)
        return tape.gradient(value, values)

    return count(gradients, shape, *(tuple(weight.shape) for weight in weights))


class Attention(layers.Layer):
    """Two heads of four numbers over one sequence."""

    def __init__(self):
        super().__init__()
        self.attention = layers.MultiHeadAttention(2, 4)

    def build(self, shape):
        self.attention.build(shape, shape)

    def call(self, inputs):
        return self.attention(inputs, inputs)


LINE, SQUARE = (ROWS, LENGTH, WIDTH), (ROWS, LENGTH, LENGTH, WIDTH)
CUBE = (ROWS, 6, 6, 6, WIDTH)
SAME = {"padding": "same"}
# The layer, the shape of its inputs, and the multiplications of one row: places, by
# weights of a kernel, by channels that each meets.
LAYERS = {
    "dense": (layers.Dense(8), LINE, 16 * 4 * 8),
    "einsum": (layers.EinsumDense("btc,cd->btd", (16, 8)), LINE, 16 * 4 * 8),
    "1d": (layers.Conv1D(8, 3), LINE, 14 * 3 * 4 * 8),
    "same": (layers.Conv1D(8, 3, **SAME), LINE, 16 * 3 * 4 * 8),
    "causal": (layers.Conv1D(8, 3, padding="causal"), LINE, 16 * 3 * 4 * 8),
    "strides": (layers.Conv1D(8, 3, 2, **SAME), LINE, 8 * 3 * 4 * 8),
    "groups": (layers.Conv1D(8, 3, groups=2), LINE, 14 * 3 * 2 * 8),
    "2d": (layers.Conv2D(8, (3, 5), 2), SQUARE, 7 * 6 * 3 * 5 * 4 * 8),
    "3d": (layers.Conv3D(8, 3), CUBE, 4**3 * 3**3 * 4 * 8),
    "depthwise 1d": (layers.DepthwiseConv1D(5, **SAME), LINE, 16 * 5 * 4),
    "multiples": (layers.DepthwiseConv1D(5, depth_multiplier=3), LINE, 12 * 5 * 4 * 3),
    "depthwise 2d": (layers.DepthwiseConv2D(3, 2), SQUARE, 7 * 7 * 3 * 3 * 4),
    "separable": (layers.SeparableConv1D(8, 3), LINE, 14 * 4 * (3 + 8)),
    "separable 2d": (layers.SeparableConv2D(8, 3), SQUARE, 14**2 * 4 * (3 * 3 + 8)),
    "transposed": (layers.Conv1DTranspose(8, 3, 2, **SAME), LINE, 16 * 3 * 4 * 8),
    "transposed 2d": (layers.Conv2DTranspose(8, 3, 2), SQUARE, 16**2 * 3 * 3 * 4 * 8),
    "attention": (Attention(), LINE, 4 * 16 * 4 * 8 + 2 * 16 * 16 * 8),
    "lstm": (layers.LSTM(8), LINE, 16 * (4 + 8) * 4 * 8),
    "gru": (layers.GRU(8), LINE, 16 * (4 + 8) * 3 * 8),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_and_its_gradients(name):
    """Each of the two gradients takes as much as the call."""
    layer, shape, products = LAYERS[name]
    expected = 3 * 2 * ROWS * products
    if isinstance(layer, layers.RNN) and keras.backend.backend() == "tensorflow":
        expected += 2 * ROWS * products // LENGTH  # Keras calls the first step twice.
    assert count_training(layer, shape)[:2] == (expected, ())


MATRIX = (3, 4, 4)


def as_complex(a):
    return ops.cast(a, "complex64")


# A function, the shapes of its tensors, its products by hand, and whether something of
# it has no formula here.
FUNCTIONS = {
    "ellipsis": (
        lambda a, b: ops.einsum("...ij,jk->...ik", a, b),
        [LINE, (4, 5)],
        2 * 16 * 4 * 5,
        False,
    ),
    "elementwise": (lambda a: ops.sqrt(ops.relu(a)) + ops.var(a), [LINE], 0, False),
    "transposition": (lambda a: ops.einsum("bij->bji", a), [LINE], 0, False),
    "branches": (
        lambda a: ops.cond(ops.sum(a) > 0, lambda: ops.matmul(a, a), lambda: a @ a + a),
        [MATRIX],
        3 * 4**3,
        False,
    ),
    "loop": (
        lambda a: ops.while_loop(lambda b: ops.sum(b) < 9, lambda b: (b @ a,), (a,))[0],
        [MATRIX],
        3 * 4**3,  # once
        True,
    ),
    "loop without products": (
        lambda a: ops.while_loop(lambda b: ops.sum(b) < 9, lambda b: (b + a,), (a,))[0],
        [MATRIX],
        0,
        True,
    ),
    "branch without a formula": (
        lambda a: ops.cond(ops.sum(a) > 0, lambda: a @ a, lambda: ops.cholesky(a)),
        [MATRIX],
        3 * 4**3,
        True,
    ),
    "complex product": (
        lambda a: ops.matmul(as_complex(a), as_complex(a)),
        [MATRIX],
        4 * 3 * 4**3,  # four products of real numbers for one
        False,
    ),
    "complex arithmetic": (
        lambda a: ops.real(as_complex(a) * as_complex(a)),
        [MATRIX],
        0,
        True,
    ),
    "complex moves": (
        lambda a: ops.imag(ops.conj(ops.transpose(as_complex(a)))),
        [MATRIX],
        0,
        False,
    ),
    "average pooling": (lambda a: ops.average_pool(a, 2, 2), [LINE], 0, True),
    "max pooling": (lambda a: ops.max_pool(a, 2, 2), [LINE], 0, True),
    "fft": (lambda a: ops.fft2((a, a))[0], [LINE], 0, True),
    "rfft": (lambda a: ops.rfft(a)[0], [LINE], 0, True),
    "cholesky": (lambda a: a @ ops.cholesky(a), [MATRIX], 3 * 4**3, True),
    "qr": (lambda a: ops.qr(a)[1], [MATRIX], 0, True),
    "svd": (lambda a: ops.svd(a)[1], [MATRIX], 0, True),
    "eigh": (lambda a: ops.eigh(a)[0], [MATRIX], 0, True),
    "solve": (ops.solve_triangular, [MATRIX, MATRIX], 0, True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_not_counted_is_named(name):
    function, shapes, products, has_others = FUNCTIONS[name]
    flops, uncounted, _ = count(function, *shapes)
    assert flops == 2 * products
    assert bool(uncounted) == has_others, uncounted


# A function of a line, and its other FLOPs by hand; see `op_flops`.
NUMBERS = ROWS * LENGTH * WIDTH
REST = {
    "pointwise": (lambda a: ops.exp(ops.relu(a) * 2) - a, 4 * NUMBERS),
    "sum": (lambda a: ops.sum(a, axis=1), NUMBERS),
    "cumulative": (lambda a: ops.cumsum(a, axis=1) + ops.cumprod(a, 2), 3 * NUMBERS),
    "einsum of one": (lambda a: ops.einsum("bij->bi", a), NUMBERS),
    "segments": (lambda a: ops.segment_sum(a, np.array([1, 0]), 2), NUMBERS),
    "rounding": (lambda a: ops.floor(a) + ops.round(a), 3 * NUMBERS),
    "angles": (lambda a: ops.arctan2(ops.sinh(a), a), 2 * NUMBERS),
    "bounds": (lambda a: ops.clip(a, 0.0, 1.0), 2 * NUMBERS),
    "product": (lambda a: ops.matmul(a, ops.swapaxes(a, 1, 2)), 0),
    "softmax": (lambda a: ops.softmax(a), 5 * NUMBERS),
    "bfloat16": (lambda a: ops.tanh(ops.cast(a, "bfloat16")), NUMBERS),
    "integers": (lambda a: ops.cast(a, "int32") * 2, 0),
    "rfft": (lambda a: ops.rfft(ops.swapaxes(a, 1, 2))[0], 2.5 * NUMBERS * 4),
}


@pytest.mark.parametrize("name", REST)
def test_the_rest_is_counted(name):
    function, expected = REST[name]
    if name == "softmax" and keras.backend.backend() == "jax":
        expected += ROWS * LENGTH  # Its maximum is compared with -inf.
    found = count(function, LINE)
    assert found.rest == expected
    assert bool(found.uncounted) == (name == "rfft")  # It is no matrix product.


def test_the_rest_of_gradients():
    """relu's: the comparison's product; the square's: 2 x, times what came."""

    def loss(x):
        return ops.sum(ops.relu(x) * x)

    def gradient(x):
        if keras.backend.backend() == "jax":
            import jax

            return jax.grad(loss)(x)
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(x)
            value = loss(x)
        return tape.gradient(value, x)

    forward, found = (count(f, LINE).rest for f in (loss, gradient))
    assert forward == 3 * NUMBERS
    # Two products, relu's gradient, and the sum of both ways to x.
    assert found - forward in range(3 * NUMBERS, 4 * NUMBERS + 1)


def test_an_operation_without_outputs_counts_nothing():
    def double(x):
        if keras.backend.backend() == "jax":
            import jax

            jax.debug.callback(print, x)
        else:
            import tensorflow as tf

            tf.print(x)
        return x + x

    found = count(double, (3, 5))
    assert (found.flops, found.rest) == (0, 15)
