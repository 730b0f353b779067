"""Tiny encoder-decoders for tests."""

import functools

import numpy as np

from remixer_tf.layers import (
    BlockTokenMLP,
    CrossAttention,
    GatedFeedForward,
    GatedMLP,
    LayerNorm,
    RelativePositionBias,
    RemixerBlock,
    RMSNorm,
    SelfAttention,
    TokenMixingMLP,
)
from remixer_tf.models import EncoderDecoder, TransformerStack

VOCAB_SIZE = 40
# As the architectures under gin/architectures, and those that packed examples suit.
KINDS = ["t5_1_1", "remixer", "gmlp", "amlp", "mixer", "mixer_encoder"]
PACKING_KINDS = KINDS[:4]


def tiny_model(kind, dropout_rate=0.0, max_length=16, **kwargs):
    """A 2+2-layer model of one of `KINDS`, built."""

    def stack(causal):
        attention = {"num_heads": 2, "d_kv": 4, "dropout_rate": dropout_rate}
        limit = {"max_length": max_length}
        self_attention = functools.partial(SelfAttention, causal=causal, **attention)
        cross_attention = functools.partial(CrossAttention, **attention)
        remixer = functools.partial(RemixerBlock, width=12, causal=causal, **limit)
        gated_mlp = functools.partial(
            GatedMLP,
            d_ff=12,
            toeplitz=True,
            causal=causal,
            d_attention=4 if kind == "amlp" else None,
            **limit,
        )
        if causal:
            token_mlp = functools.partial(BlockTokenMLP, 8, window=4, gated=True)
        else:
            token_mlp = functools.partial(TokenMixingMLP, 8, gated=True, **limit)
        feed_forward = functools.partial(
            GatedFeedForward, d_ff=12, dropout_rate=dropout_rate
        )
        attends = kind in ("t5_1_1", "remixer") or (kind == "mixer_encoder" and causal)
        gmlp = kind in ("gmlp", "amlp")
        sublayers = {}
        if attends:
            sublayers["self_attention"] = self_attention
        elif not gmlp:
            sublayers["token_mixing"] = token_mlp
        if causal:
            sublayers["cross_attention"] = cross_attention
        if gmlp:
            sublayers["gated_mlp"] = gated_mlp
        elif kind == "remixer":
            sublayers["remixer"] = remixer
        else:
            sublayers["feed_forward"] = feed_forward
        position_bias = functools.partial(
            RelativePositionBias, num_heads=2, bidirectional=not causal
        )
        return functools.partial(
            TransformerStack,
            sublayers,
            num_layers=2,
            position_bias=position_bias if attends else None,
            norm=LayerNorm if gmlp else RMSNorm,
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
