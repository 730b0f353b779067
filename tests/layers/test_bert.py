"""The attention of the gMLP paper's baselines against NumPy."""

import math

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import BertSelfAttention, Context, PositionalAttention
from tests.compiled import compiled
from tests.layers.harness import DTYPES, assert_equals, randomize


def make(cls, dtype="float32", **kwargs):
    layer = cls(num_heads=3, d_kv=4, name="attention", dtype=dtype, **kwargs)
    layer.build((None, None, 6))
    randomize(layer)
    weights = {
        w.path.split("/", 1)[1]: ops.convert_to_numpy(w)
        for w in layer.trainable_weights
    }
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    return layer, weights, x


def numpy_attention(w, x, causal):
    """Distances of up to 4 have a bucket each: 16 + d ahead, d behind or both."""
    y = np.tile(w["out/bias"], (*x.shape[:2], 1))
    distance = np.arange(5)[None, :] - np.arange(5)[:, None]
    if causal:
        buckets = np.maximum(-distance, 0)
    else:
        buckets = np.where(distance > 0, 16 + distance, -distance)
    for b in range(len(x)):
        for h in range(3):
            part = slice(4 * h, 4 * h + 4)

            def project(name, b=b, part=part):
                kernel, bias = w[f"{name}/kernel"], w[f"{name}/bias"]
                return x[b] @ kernel[:, part] + bias[part]

            logits = np.zeros((5, 5))
            if "query/kernel" in w:
                logits += project("query") @ project("key").T / math.sqrt(4)
            if "position_bias/rel_embedding" in w:
                logits += w["position_bias/rel_embedding"][h][buckets]
            if causal:
                logits = np.where(np.tri(5), logits, -np.inf)
            weights = np.exp(logits - logits.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            y[b] += weights @ project("value") @ w["out/kernel"][part]
    return y


@DTYPES
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "cls, arguments",
    [
        (BertSelfAttention, {}),
        (BertSelfAttention, {"relative_bias": True}),
        (PositionalAttention, {}),
    ],
)
def test_equations(cls, arguments, causal, dtype, tol):
    layer, w, x = make(cls, dtype, causal=causal, **arguments)
    y = compiled(layer)(x, context=Context())
    assert_equals(y, numpy_attention(w, x, causal), tol)


def test_positional_attention_has_value_and_output_only():
    _, w, _ = make(PositionalAttention)
    assert {name.split("/")[0] for name in w} == {"value", "out", "position_bias"}


def test_biases_of_layer_and_stack_add_up():
    layer, _, x = make(BertSelfAttention, relative_bias=True)
    own = np.array(layer.position_bias.whole(5))
    both = compiled(layer)(x, context=Context(position_bias=own))
    layer.position_bias.rel_embedding.assign(2 * layer.position_bias.rel_embedding)
    twice = compiled(layer)(x, context=Context())
    np.testing.assert_allclose(np.array(both), np.array(twice), atol=1e-5)


def test_initial_values():
    layer = BertSelfAttention(num_heads=8, d_kv=16, name="attention")
    layer.build((None, None, 64))
    for name in ("query", "key", "value", "out"):
        part = getattr(layer, name)
        # The truncated normal's deviation is 0.88 of the normal's.
        assert abs(ops.convert_to_numpy(part.kernel).std() - 0.0176) < 5e-4
        np.testing.assert_array_equal(ops.convert_to_numpy(part.bias), 0)
