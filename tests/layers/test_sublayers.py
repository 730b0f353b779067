"""Every sublayer under the harness, in each of its variants."""

import functools

import pytest

from remixer_tf.layers import (
    CrossAttention,
    FeedForward,
    GatedFeedForward,
    LengthMixing,
    RemixerBlock,
    SelfAttention,
)
from tests.layers.harness import run_sublayer_test


@pytest.mark.parametrize("causal", [False, True])
def test_self_attention(causal):
    factory = functools.partial(SelfAttention, num_heads=3, d_kv=4, causal=causal)
    run_sublayer_test(factory, causal=causal)


def test_cross_attention():
    factory = functools.partial(CrossAttention, num_heads=3, d_kv=4)
    run_sublayer_test(factory, causal=True, reads_encoder=True)


@pytest.mark.parametrize("cls", [FeedForward, GatedFeedForward])
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
