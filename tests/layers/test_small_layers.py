"""Normalisation, feed-forward and dropout against NumPy."""

import math

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import Context, Dropout, FeedForward, GatedFeedForward, RMSNorm
from remixer_tf.layers.base import get_activation


def test_rms_norm():
    layer = RMSNorm(name="norm")
    layer.build((None, 6))
    scale = np.linspace(0.5, 2, 6).astype("float32")
    layer.scale.assign(scale)
    x = np.random.default_rng(0).normal(size=(2, 3, 6)).astype("float32")
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * scale
    np.testing.assert_allclose(np.array(layer(x)), expected, rtol=1e-5)


def test_rms_norm_statistics_are_float32():
    layer = RMSNorm(name="norm", dtype="mixed_bfloat16")
    # In bfloat16 the sum of 4,096 equal squares would stop growing at 256.
    x = ops.ones((1, 4096), "bfloat16") * 3
    y = layer(x)
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    np.testing.assert_array_equal(np.array(ops.cast(y, "float32")), 1)


def test_gelu_forms():
    x = np.linspace(-4, 4, 101).astype("float32")
    exact = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x])
    tanh = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(np.array(get_activation("gelu")(x)), tanh, atol=1e-5)
    np.testing.assert_allclose(
        np.array(get_activation("gelu_exact")(x)), exact, atol=1e-5
    )
    assert np.abs(exact - tanh).max() > 1e-4


def test_feed_forward():
    x = np.random.default_rng(0).normal(size=(2, 3, 6)).astype("float32")
    layer = FeedForward(10, name="feed_forward")
    y = np.array(layer(x, context=Context()))
    wi, wo = (ops.convert_to_numpy(part.kernel) for part in (layer.wi, layer.wo))
    np.testing.assert_allclose(y, np.maximum(x @ wi, 0) @ wo, atol=1e-5)


def test_gated_feed_forward():
    x = np.random.default_rng(0).normal(size=(2, 3, 6)).astype("float32")
    layer = GatedFeedForward(10, name="feed_forward")
    y = np.array(layer(x, context=Context()))
    wi_0, wi_1, wo = (
        ops.convert_to_numpy(part.kernel) for part in (layer.wi_0, layer.wi_1, layer.wo)
    )
    hidden = x @ wi_0
    hidden *= 0.5 * (
        1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3))
    )
    np.testing.assert_allclose(y, (hidden * (x @ wi_1)) @ wo, atol=1e-5)


def test_dropout_shares_its_mask_and_keeps_the_mean():
    layer = Dropout(0.25, shared_axes=(1,), name="dropout")
    x = np.ones((4, 5, 400), "float32")
    y = np.array(layer(x, training=True))
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))
    assert set(np.unique(y.round(4))) == {0.0, np.float32(4 / 3).round(4)}
    assert abs(y.mean() - 1) < 0.06
    assert (np.array(layer(x, training=True)) != y).any()
    np.testing.assert_array_equal(np.array(layer(x)), x)


def test_dropout_state_has_a_stable_path():
    paths = []
    for _ in range(2):
        layer = Dropout(0.1, name="dropout")
        layer.build()
        paths.append([v.path for v in layer.variables])
    assert paths[0] == paths[1] == [["dropout/seed_generator/seed_generator_state"]][0]
    with pytest.raises(ValueError, match="rate=1.0"):
        Dropout(1.0)
