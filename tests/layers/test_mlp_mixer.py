"""MLP-Mixer's token mixing and its two causal readings against NumPy."""

import math

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import (
    BlockTokenMLP,
    Context,
    SlidingTokenMLP,
    TokenMixingMLP,
)
from tests.compiled import compiled
from tests.layers.harness import DTYPES, assert_equals, randomize

GATED = pytest.mark.parametrize("gated", [False, True])


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


LONGEST = {TokenMixingMLP: {"max_length": 8}, BlockTokenMLP: {"window": 8}}


def make(cls, *args, **kwargs):
    layer = cls(*args, name="token_mlp", **kwargs)
    layer.build((None, None, 6))
    randomize(layer)
    weights = {
        w.path.split("/")[-1]: ops.convert_to_numpy(w) for w in layer.trainable_weights
    }
    x = np.random.default_rng(0).normal(size=(2, 8, 6)).astype("float32")
    return layer, weights, x


def activated(w, x, units=slice(None)):
    """The hidden units [units, channels] of x [tokens, channels], n tokens used."""
    n = len(x)
    if "wi" in w:
        return gelu(w["wi"][units, :n] @ x + w["wi_bias"][units])
    return gelu(w["wi_0"][units, :n] @ x) * (w["wi_1"][units, :n] @ x)


@GATED
@DTYPES
def test_token_mixing_mlp(gated, dtype, tol):
    layer, w, x = make(TokenMixingMLP, 10, max_length=9, gated=gated, dtype=dtype)
    mask = np.array([[1] * 8, [1] * 5 + [0] * 3], "int32")
    bias = 0 if gated else w["wo_bias"][:8]
    expected = [
        w["wo"][:8] @ activated(w, example * real[:, None]) + bias
        for example, real in zip(x, mask, strict=True)
    ]
    y = compiled(layer)(x, context=Context(padding_mask=ops.convert_to_tensor(mask)))
    assert_equals(y, np.stack(expected), tol)


@GATED
@DTYPES
def test_sliding_token_mlp(gated, dtype, tol):
    layer, w, x = make(SlidingTokenMLP, 10, 3, gated=gated, dtype=dtype)
    expected = np.zeros_like(x)
    for b in range(2):
        for t in range(8):
            window = np.zeros((3, 6))
            for back in range(3):
                if t - back >= 0:
                    window[2 - back] = x[b, t - back]
            expected[b, t] = w["wo"] @ activated(w, window)
            expected[b, t] += 0 if gated else w["wo_bias"]
    assert_equals(compiled(layer)(x, context=Context()), expected, tol)


@GATED
@DTYPES
@pytest.mark.parametrize("window, length", [(3, 8), (4, 8), (8, 5), (1, 4)])
def test_block_token_mlp(window, length, gated, dtype, tol):
    layer, w, x = make(BlockTokenMLP, 2 * window, window, gated=gated, dtype=dtype)
    x = x[:, :length]
    expected = np.zeros_like(x)
    for b in range(2):
        for t in range(length):
            start, place = t // window * window, t % window
            for group in range(place + 1):
                units = slice(2 * group, 2 * group + 2)
                seen = x[b, start : start + group + 1]
                hidden = activated(w, seen, units)
                expected[b, t] += w["wo"][place, units] @ hidden
            expected[b, t] += 0 if gated else w["wo_bias"][place]
    assert_equals(compiled(layer)(x, context=Context()), expected, tol)


def test_a_token_reaches_as_far_as_the_window_and_no_further():
    for cls, reach in [(SlidingTokenMLP, [2, 3, 4]), (BlockTokenMLP, [2])]:
        layer, _, x = make(cls, 6, 3)
        changed = x.copy()
        changed[:, 2] += 1
        difference = np.array(compiled(layer)(changed, context=Context()))
        difference -= np.array(compiled(layer)(x, context=Context()))
        moved = np.flatnonzero(np.abs(difference).max((0, 2)) > 1e-5)
        assert moved.tolist() == reach


@pytest.mark.parametrize("cls", [TokenMixingMLP, BlockTokenMLP])
def test_packed_examples_are_refused(cls):
    layer, _, x = make(cls, 8, **LONGEST[cls])
    with pytest.raises(ValueError, match="token_mlp.*packing off .*pack = False"):
        compiled(layer)(x, context=Context(segment_ids=np.ones((2, 8), "int32")))


def test_errors():
    with pytest.raises(ValueError, match="d_tokens=8, window=3"):
        BlockTokenMLP(8, 3)
    layer, _, _ = make(TokenMixingMLP, 8, max_length=8)
    with pytest.raises(ValueError, match="TokenMixingMLP has no decode_step"):
        layer.init_cache(2, 8, Context())
