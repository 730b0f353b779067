"""Tiny encoder-decoders for tests."""

import functools

import numpy as np

from remixer_tf.layers import (
    CrossAttention,
    GatedFeedForward,
    RelativePositionBias,
    RemixerBlock,
    SelfAttention,
)
from remixer_tf.models import EncoderDecoder, TransformerStack

VOCAB_SIZE = 40


def tiny_model(kind, dropout_rate=0.0, max_length=16, **kwargs):
    """A 2+2-layer `t5_1_1` or `remixer`, built."""

    def stack(causal):
        attention = {"num_heads": 2, "d_kv": 4, "dropout_rate": dropout_rate}
        sublayers = {
            "self_attention": functools.partial(
                SelfAttention, causal=causal, **attention
            )
        }
        if causal:
            sublayers["cross_attention"] = functools.partial(
                CrossAttention, **attention
            )
        if kind == "remixer":
            sublayers["remixer"] = functools.partial(
                RemixerBlock, max_length=max_length, width=12, causal=causal
            )
        else:
            sublayers["feed_forward"] = functools.partial(
                GatedFeedForward, d_ff=12, dropout_rate=dropout_rate
            )
        return functools.partial(
            TransformerStack,
            sublayers,
            num_layers=2,
            position_bias=functools.partial(
                RelativePositionBias, num_heads=2, bidirectional=not causal
            ),
            dropout_rate=dropout_rate,
        )

    model = EncoderDecoder(stack(False), stack(True), VOCAB_SIZE, d_model=8, **kwargs)
    model.build()
    return model


def tiny_batch(batch_size=3, encoder_length=10, decoder_length=7, seed=0):
    """Random tokens, each row with another amount of padding."""
    rng = np.random.default_rng(seed)
    inputs = rng.integers(2, VOCAB_SIZE, (batch_size, encoder_length)).astype("int32")
    targets = rng.integers(2, VOCAB_SIZE, (batch_size, decoder_length)).astype("int32")
    for row in range(batch_size):
        inputs[row, encoder_length - row :] = 0
        targets[row, decoder_length - row :] = 0
    return {
        "encoder_input_tokens": inputs,
        "decoder_input_tokens": np.pad(targets, [(0, 0), (1, 0)])[:, :-1],
        "decoder_target_tokens": targets,
        "decoder_loss_weights": (targets > 0).astype("int32"),
    }
