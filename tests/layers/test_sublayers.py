"""Every sublayer under the harness, in each of its variants."""

import functools

import pytest

from remixer_tf.layers import (
    BertFeedForward,
    BertSelfAttention,
    BlockTokenMLP,
    CrossAttention,
    FeedForward,
    GatedFeedForward,
    GatedMLP,
    LengthMixing,
    PositionalAttention,
    RemixerBlock,
    SelfAttention,
    SlidingTokenMLP,
    TokenMixingMLP,
)
from tests.layers.harness import run_sublayer_test


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("relative_bias", [False, True])
@pytest.mark.parametrize("cls", [SelfAttention, BertSelfAttention])
def test_self_attention(cls, relative_bias, causal):
    arguments = {"num_heads": 3, "d_kv": 4, "relative_bias": relative_bias}
    factory = functools.partial(cls, causal=causal, **arguments)
    run_sublayer_test(factory, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_positional_attention(causal):
    factory = functools.partial(PositionalAttention, num_heads=3, d_kv=4, causal=causal)
    run_sublayer_test(factory, causal=causal)


def test_cross_attention():
    factory = functools.partial(CrossAttention, num_heads=3, d_kv=4)
    run_sublayer_test(factory, causal=True, reads_encoder=True)


@pytest.mark.parametrize("cls", [FeedForward, GatedFeedForward, BertFeedForward])
def test_feed_forward(cls):
    run_sublayer_test(functools.partial(cls, d_ff=10), mixes_tokens=False)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("toeplitz", [False, True])
@pytest.mark.parametrize("num_heads", [1, 3])
def test_length_mixing(causal, softmax, toeplitz, num_heads):
    factory = functools.partial(
        LengthMixing,
        max_length=9,
        num_heads=num_heads,
        toeplitz=toeplitz,
        softmax=softmax,
        use_bias=True,
        causal=causal,
    )
    run_sublayer_test(factory, causal=causal, max_length=9)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"width": None},
        {"num_mixing_heads": 2},
        {"toeplitz": True},
        {"alpha": 0.3},
        {"alpha": "learned_scalar"},
        {"alpha": "learned_vector"},
        {"alpha": "gated"},
        {"composition": "none"},
        {"composition": "multiplicative"},
        {"composition": "subtractive"},
        {"composition": "gate"},
        {"composition": "gate", "alpha": "gated", "activation": "gelu_exact"},
    ],
    ids=str,
)
def test_remixer_block(causal, choice):
    arguments = {"max_length": 8, "width": 16, "causal": causal, **choice}
    factory = functools.partial(RemixerBlock, **arguments)
    run_sublayer_test(factory, causal=causal, max_length=8)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "choice",
    [
        {},
        {"toeplitz": True},
        {"variant": "multiplicative"},
        {"variant": "additive"},
        {"variant": "linear"},
        {"d_attention": 4},
        {"d_attention": 4, "variant": "additive", "toeplitz": True},
    ],
    ids=str,
)
def test_gated_mlp(causal, choice):
    arguments = {"d_ff": 16, "max_length": 8, "causal": causal, **choice}
    factory = functools.partial(GatedMLP, **arguments)
    run_sublayer_test(factory, causal=causal, max_length=8)


@pytest.mark.parametrize("gated", [False, True])
def test_token_mixing_mlp(gated):
    factory = functools.partial(TokenMixingMLP, 10, max_length=8, gated=gated)
    run_sublayer_test(factory, max_length=8, packs=False)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("window", [1, 3, 9])
def test_sliding_token_mlp(gated, window):
    factory = functools.partial(SlidingTokenMLP, 10, window=window, gated=gated)
    run_sublayer_test(factory, causal=True)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("window", [1, 3, 7, 9])
def test_block_token_mlp(gated, window):
    factory = functools.partial(BlockTokenMLP, 2 * window, window=window, gated=gated)
    run_sublayer_test(factory, causal=True, packs=False)
