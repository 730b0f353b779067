"""An embedding with repeated ids: TensorFlow gives its gradient as IndexedSlices."""

import keras
import numpy as np
import pytest

if keras.backend.backend() != "tensorflow":
    pytest.skip("Sparse gradients are TensorFlow's.", allow_module_level=True)

import tensorflow as tf

from remixer_tf.optimizers import Adafactor

IDS = np.array([[1, 3, 1], [1, 0, 3]])  # 1 three times, 3 twice, 2 and 4 never
COEFFICIENTS = np.array([[1.0, -2.0, 0.5], [3.0, 1.0, -1.0]])
STEPS = 6


def train(optimizer, densify):
    embedding = keras.layers.Embedding(5, 3)
    embedding.build()
    initial = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    embedding.embeddings.assign(initial)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            output = embedding(tf.constant(IDS))
            squares = 0.5 * tf.reduce_sum(output**2, axis=-1)
            loss = tf.reduce_sum(tf.constant(COEFFICIENTS, tf.float32) * squares)
        gradient = tape.gradient(loss, embedding.embeddings.value)
        assert isinstance(gradient, tf.IndexedSlices)
        if densify:
            gradient = tf.convert_to_tensor(gradient)
        optimizer.apply([gradient], [embedding.embeddings])

    for _ in range(STEPS):
        step()
    return initial.astype("float64"), embedding.embeddings.numpy()


def numpy_gradient(table):
    gradient = np.zeros_like(table)
    np.add.at(gradient, IDS, COEFFICIENTS[..., None] * table[IDS])
    return gradient


def numpy_adafactor(table, learning_rate):
    second_moment = 0.0
    for step in range(STEPS):
        gradient = numpy_gradient(table)
        keep = 1 - (step + 1) ** -0.8
        second_moment = keep * second_moment + (1 - keep) * (gradient**2 + 1e-30)
        update = gradient / np.sqrt(second_moment)
        update /= max(1.0, np.sqrt(np.mean(update**2)))
        table = table - learning_rate * np.sqrt(np.mean(table**2)) * update
    return table


def numpy_adamw(table, learning_rate, weight_decay):
    first = second = 0.0
    for step in range(1, STEPS + 1):
        gradient = numpy_gradient(table)
        table = table - learning_rate * weight_decay * table
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        root = np.sqrt(second / (1 - 0.999**step))
        table = table - learning_rate * first / (1 - 0.9**step) / (root + 1e-7)
    return table


@pytest.mark.parametrize("densify", [True, False])
def test_adafactor_equals_numpy(densify):
    initial, trained = train(Adafactor(0.1), densify)
    np.testing.assert_allclose(trained, numpy_adafactor(initial, 0.1), rtol=1e-5)


def test_adamw_equals_numpy():
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.01)
    initial, trained = train(optimizer, densify=True)
    np.testing.assert_allclose(
        trained, numpy_adamw(initial, 0.1, 0.01), rtol=1e-4, atol=1e-5
    )


def test_keras_adamw_is_wrong_on_the_sparse_gradient():
    """If this fails, Keras has mended it, and gradients may stay sparse for it."""
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.01)
    initial, trained = train(optimizer, densify=False)
    error = np.abs(trained - numpy_adamw(initial, 0.1, 0.01)).max()
    assert error > 0.05


def test_adafactor_clips_the_sparse_gradient_as_the_dense_one():
    options = {"clipnorm": 0.5, "loss_scale_factor": 2.0}
    _, dense = train(Adafactor(0.1, **options), densify=True)
    _, sparse = train(Adafactor(0.1, **options), densify=False)
    np.testing.assert_allclose(sparse, dense, rtol=1e-6)


def test_gradients_of_unknown_shapes():
    """As `fit` has them, where the size of batches is unknown while it traces."""
    gradient = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")

    def applied(shape):
        variable = keras.Variable(np.ones((4, 3), "float32"))
        optimizer = Adafactor(1e-2, min_dim_size_to_factor=2)
        optimizer.build([variable])

        @tf.function(input_signature=[tf.TensorSpec(shape, tf.float32)])
        def step(gradient):
            optimizer.apply([gradient], [variable])

        step(gradient)
        return variable.numpy()

    np.testing.assert_array_equal(applied([None, 3]), applied([4, 3]))
