"""T5's attention against NumPy."""

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import (
    Context,
    CrossAttention,
    RelativePositionBias,
    SelfAttention,
)
from tests.compiled import compiled
from tests.layers.harness import DTYPES, assert_equals, randomize


def numpy_attention(layer, x, memory, bias):
    """`bias`: broadcast to [batch, heads, target, source]."""
    query, key, value, out = (
        ops.convert_to_numpy(getattr(layer, name).kernel)
        for name in ("query", "key", "value", "out")
    )
    heads, width = layer.num_heads, layer.d_kv
    y = np.zeros(x.shape)
    bias = np.broadcast_to(bias, (len(x), heads, x.shape[1], memory.shape[1]))
    for b in range(len(x)):
        for h in range(heads):
            part = slice(h * width, (h + 1) * width)
            logits = (x[b] @ query[:, part]) @ (memory[b] @ key[:, part]).T + bias[b, h]
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            y[b] += weights @ (memory[b] @ value[:, part]) @ out[part]
    return y


def make(cls, **kwargs):
    layer = cls(num_heads=3, d_kv=4, name="attention", **kwargs)
    layer.build((None, None, 6))
    randomize(layer)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 6)).astype("float32")
    return layer, x, rng.normal(size=(2, 4, 6)).astype("float32")


@DTYPES
@pytest.mark.parametrize("causal", [False, True])
def test_self_attention(causal, dtype, tol):
    layer, x, _ = make(SelfAttention, causal=causal, dtype=dtype)
    position_bias = np.random.default_rng(1).normal(size=(1, 3, 5, 5)).astype("float32")
    bias = position_bias.copy()
    mask = np.array([[1] * 5, [1] * 3 + [0] * 2], "int32")
    bias = bias + np.where(mask, 0, -1e9)[:, None, None, :]
    if causal:
        bias = bias + np.where(np.tri(5), 0, -1e9)
    context = Context(
        padding_mask=ops.convert_to_tensor(mask),
        position_bias=ops.convert_to_tensor(position_bias),
    )
    y = compiled(layer)(x, context=context)
    assert_equals(y, numpy_attention(layer, x, x, bias), tol)


@DTYPES
def test_cross_attention(dtype, tol):
    layer, x, memory = make(CrossAttention, dtype=dtype)
    mask = np.array([[1] * 4, [1] * 2 + [0] * 2], "int32")
    context = Context(encoded=memory, encoded_mask=mask)
    y = compiled(layer)(x, context=context)
    bias = np.where(mask, 0, -1e9)[:, None, None, :]
    assert_equals(y, numpy_attention(layer, x, memory, bias), tol)


@pytest.mark.slow_on_jax
def test_cross_attention_of_packed_examples_keeps_to_its_own():
    layer, x, memory = make(CrossAttention)
    targets = np.array([[1, 1, 2, 2, 0]] * 2, "int32")
    sources = np.array([[1, 2, 2, 0]] * 2, "int32")
    packed = layer(
        x,
        context=Context(
            encoded=memory,
            encoded_mask=(sources > 0).astype("int32"),
            segment_ids=targets,
            encoded_segment_ids=sources,
        ),
    )
    alone = layer(x[:, 2:4], context=Context(encoded=memory[:, 1:3]))
    np.testing.assert_allclose(np.array(packed)[:, 2:4], np.array(alone), atol=1e-5)


def test_initializers_leave_out_the_root_of_d_kv():
    layer = SelfAttention(num_heads=8, d_kv=16, name="attention")
    layer.build((None, None, 64))
    for name, variance in {
        "query": 1 / (64 * 16),
        "key": 1 / 64,
        "value": 1 / 64,
        "out": 1 / (8 * 16),
    }.items():
        kernel = ops.convert_to_numpy(getattr(layer, name).kernel)
        assert abs(kernel.std() / variance**0.5 - 1) < 0.05, name


def t5_bucket(distance, bidirectional, buckets=32, max_distance=128):
    """The bucket of one distance (key minus query), as T5's paper tells it."""
    offset = 0
    if bidirectional:
        buckets //= 2
        offset = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return offset + distance
    steps = np.log(distance / exact) / np.log(max_distance / exact) * (buckets - exact)
    return offset + min(exact + int(steps), buckets - 1)


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("bidirectional", [False, True])
def test_relative_position_bias(bidirectional):
    layer = RelativePositionBias(3, bidirectional, name="position_bias")
    layer.build()
    table = np.random.default_rng(0).normal(size=(3, 32)).astype("float32")
    layer.rel_embedding.assign(table)
    n = 150
    positions = ops.arange(n, dtype="int32")
    bias = np.array(layer.whole(n))
    assert bias.shape == (1, 3, n, n)
    # Distance 64 and 32 lie on a bucket's edge in exact arithmetic; float32 decides.
    for query, key in [(0, 0), (5, 0), (0, 5), (9, 1), (149, 0), (0, 149), (40, 17)]:
        bucket = t5_bucket(key - query, bidirectional)
        np.testing.assert_array_equal(bias[0, :, query, key], table[:, bucket])
    row = np.array(layer(ops.convert_to_tensor([70], "int32"), positions))
    np.testing.assert_array_equal(row[0, :, 0], bias[0, :, 70])
    queries, keys = np.array([7, 3, 90], "int32"), np.array([4, 91], "int32")
    some = np.array(layer(ops.convert_to_tensor(queries), ops.convert_to_tensor(keys)))
    np.testing.assert_array_equal(some[0], bias[0][:, queries[:, None], keys])


@pytest.mark.parametrize("bidirectional, exact", [(True, 8), (False, 16)])
def test_distances_end_above_the_exact_buckets(bidirectional, exact):
    with pytest.raises(ValueError, match=f"max_distance must be more than {exact}"):
        RelativePositionBias(3, bidirectional, max_distance=exact).build()
    layer = RelativePositionBias(3, bidirectional, max_distance=exact + 1)
    layer.build()
    assert np.isfinite(np.array(layer.whole(40))).all()
