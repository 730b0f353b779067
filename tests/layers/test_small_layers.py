"""Normalisation, feed-forward, dropout, positions against NumPy."""

import functools
import math

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import (
    BertFeedForward,
    Context,
    DecodeState,
    Dropout,
    FeedForward,
    GatedFeedForward,
    LayerNorm,
    LengthMixing,
    PositionEmbedding,
    RMSNorm,
)
from remixer_tf.layers.base import dense, get_activation
from tests.compiled import outputs_and_gradients
from tests.layers.harness import DTYPES, assert_equals, randomize


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


def test_layer_norm():
    layer = LayerNorm(name="norm")
    layer.build((None, 6))
    gamma = np.linspace(0.5, 2, 6).astype("float32")
    layer.gamma.assign(gamma)
    layer.beta.assign(gamma - 1)
    # A small variance, so that epsilon counts.
    x = 3 + 1e-3 * np.random.default_rng(0).normal(size=(2, 3, 6)).astype("float32")
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    expected = centred / np.sqrt(variance + 1e-6) * gamma + gamma - 1
    np.testing.assert_allclose(np.array(layer(x)), expected, atol=2e-3)
    assert type(layer).from_config(layer.get_config()).epsilon == 1e-6


def test_layer_norm_statistics_are_float32():
    layer = LayerNorm(name="norm", dtype="mixed_bfloat16")
    # 4,096 values whose sum, squares and small differences bfloat16 could not keep.
    x = np.tile([256.0, 258.0], 2048)[None]
    y = layer(ops.convert_to_tensor(x, "bfloat16"))
    assert keras.backend.standardize_dtype(y.dtype) == "bfloat16"
    expected = np.tile([-1.0, 1.0], 2048)[None]
    np.testing.assert_array_equal(np.array(ops.cast(y, "float32")), expected)


def test_gelu_forms():
    x = np.linspace(-4, 4, 101).astype("float32")
    exact = np.array([0.5 * v * (1 + math.erf(v / math.sqrt(2))) for v in x])
    tanh = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(np.array(get_activation("gelu")(x)), tanh, atol=1e-5)
    np.testing.assert_allclose(
        np.array(get_activation("gelu_exact")(x)), exact, atol=1e-5
    )
    assert np.abs(exact - tanh).max() > 1e-4


@DTYPES
def test_feed_forward(dtype, tol):
    x = np.random.default_rng(0).normal(size=(2, 3, 6)).astype("float32")
    layer = FeedForward(10, name="feed_forward", dtype=dtype)
    y = layer(x, context=Context())
    wi, wo = (ops.convert_to_numpy(part.kernel) for part in (layer.wi, layer.wo))
    assert_equals(y, np.maximum(x @ wi, 0) @ wo, tol)


@DTYPES
def test_bert_feed_forward(dtype, tol):
    x = np.random.default_rng(0).normal(size=(2, 3, 6)).astype("float32")
    layer = BertFeedForward(10, name="feed_forward", dtype=dtype)
    layer.build((None, None, 6))
    randomize(layer)
    y = layer(x, context=Context())
    wi, bi, wo, bo = (ops.convert_to_numpy(w) for w in layer.trainable_weights)
    hidden = x @ wi + bi
    hidden *= 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
    assert_equals(y, hidden @ wo + bo, tol)


def test_bert_feed_forward_starts_at_0_02_and_zero_biases():
    layer = BertFeedForward(400, name="feed_forward")
    layer.build((None, None, 100))
    for part in (layer.wi, layer.wo):
        # The truncated normal's deviation is 0.88 of the normal's.
        assert abs(ops.convert_to_numpy(part.kernel).std() - 0.0176) < 5e-4
        np.testing.assert_array_equal(ops.convert_to_numpy(part.bias), 0)


@DTYPES
def test_gated_feed_forward(dtype, tol):
    x = np.random.default_rng(0).normal(size=(2, 3, 6)).astype("float32")
    layer = GatedFeedForward(10, name="feed_forward", dtype=dtype)
    y = layer(x, context=Context())
    wi_0, wi_1, wo = (
        ops.convert_to_numpy(part.kernel) for part in (layer.wi_0, layer.wi_1, layer.wo)
    )
    hidden = x @ wi_0
    hidden *= 0.5 * (
        1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3))
    )
    assert_equals(y, (hidden * (x @ wi_1)) @ wo, tol)


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


def positions_layer(**kwargs):
    layer = PositionEmbedding(8, name="positions", **kwargs)
    layer.build((None, None, 6))
    randomize(layer)
    return layer, ops.convert_to_numpy(layer.embeddings)


@pytest.mark.parametrize("dtype, tol", [("float32", 1e-6), ("mixed_bfloat16", 0.03)])
def test_position_embedding(dtype, tol):
    layer, table = positions_layer(dtype=dtype)
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")

    def run(x, state=None, **fields):
        y = layer(x, context=Context(**fields), state=state)
        return np.array(ops.cast(y, "float32"))

    np.testing.assert_allclose(run(x), x + table[:5], atol=tol)
    positions = np.array([[0, 1, 2, 0, 1], [0, 1, 0, 1, 0]], "int32")
    packed = run(x, segment_ids=np.ones((2, 5), "int32"), positions=positions)
    np.testing.assert_allclose(packed, x + table[positions], atol=tol)
    keys = ops.arange(5, dtype="int32")
    for t in range(5):
        step = ops.convert_to_tensor(t, "int32")
        y = run(x[:, t : t + 1], DecodeState(step, keys))
        np.testing.assert_allclose(y, x[:, t : t + 1] + table[t], atol=tol)


def test_position_embedding_errors():
    layer, _ = positions_layer()
    with pytest.raises(ValueError, match="9 tokens .* max_length=8"):
        layer(np.zeros((1, 9, 6), "float32"), context=Context())
    keys, step = ops.arange(9), ops.convert_to_tensor(0)
    with pytest.raises(ValueError, match="9 tokens .* max_length=8"):
        state = DecodeState(step, keys)
        layer(np.zeros((1, 1, 6), "float32"), context=Context(), state=state)
    with pytest.raises(ValueError, match="segment_ids without positions"):
        context = Context(segment_ids=np.ones((1, 4), "int32"))
        layer(np.zeros((1, 4, 6), "float32"), context=context)


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("kind", ["dense", "mixing"])
def test_gradients_of_biases_are_summed_in_float32(kind, dtype):
    """8,192 ones. In bfloat16 such a sum stops growing at 256."""
    if kind == "dense":
        layer = dense("dense", (None, None, 2), 3, dtype, use_bias=True)
        x, call = ops.zeros((8, 1024, 2), layer.compute_dtype), layer
        bias = layer.bias
    else:
        layer = LengthMixing(use_bias=True, max_length=4, dtype=dtype)
        layer.build((None, None, 2))
        x = ops.zeros((4096, 4, 2), layer.compute_dtype)
        call, bias = functools.partial(layer, context=Context()), layer.spatial_bias
    bias.assign(np.zeros(bias.shape))
    _, gradients = outputs_and_gradients(lambda: ops.cast(call(x), "float32"), layer)
    np.testing.assert_array_equal(gradients[bias.path], np.full(bias.shape, 8192.0))
