"""Tiny models for tests."""

import functools

import keras
import numpy as np
import pytest

from remixer_tf.layers import (
    BaseRouter,
    BertFeedForward,
    BertSelfAttention,
    BlockTokenMLP,
    CrossAttention,
    GatedFeedForward,
    GatedMLP,
    GShardRouter,
    HashRouter,
    LayerNorm,
    MoE,
    PositionEmbedding,
    RelativePositionBias,
    RemixerBlock,
    RMSNorm,
    SelfAttention,
    SparseSpatialGate,
    SpatialGatingUnit,
    SwitchRouter,
    TinyAttention,
    TokenMixingMLP,
)
from remixer_tf.models import (
    DecoderOnly,
    EncoderDecoder,
    EncoderOnly,
    MaskedLMHead,
    TransformerStack,
)
from tests.compiled import compiled, slow_on_jax

VOCAB_SIZE = 40
# As the architectures under gin/architectures, of stacks those of `tiny_stack`.
KINDS = ["t5_1_1", "remixer", "gmlp", "amlp", "mixer", "mixer_encoder"]
STACKS = ["bert", "gmlp", "amlp"]
# Language models with mixtures of experts, see `tiny_mixture`.
MIXTURES = ["switch", "gshard", "base", "hash", "smlp", "gmlp_tmoe"]
# For tests that go through them. On JAX one of each is quick; tests/layers has every
# layer there by itself.
EACH_KIND = slow_on_jax(KINDS, but=["remixer"])
PACKING_KINDS = [kind for kind in EACH_KIND if "mixer" not in kind.values[0][:5]]
OTHER_KINDS = [kind for kind in EACH_KIND if kind not in PACKING_KINDS]
EACH_STACK = slow_on_jax(STACKS, but=["amlp"])
EACH_MIXTURE = slow_on_jax(MIXTURES, but=["smlp"])
EACH_DECODER = slow_on_jax([*STACKS, *MIXTURES], but=["amlp", "smlp"])


def slow_but(quick, kinds, slow=None):
    """Those of `kinds` that are not `quick` are slow, or slower if not in `slow`."""

    def marks(kind):
        if kind in quick:
            return []
        return pytest.mark.slow if slow is None or kind in slow else pytest.mark.slower

    return [pytest.param(kind, marks=marks(kind)) for kind in kinds]


# For what takes longer.
ON_JAX = keras.backend.backend() == "jax"
SOME_KINDS = slow_but(["remixer"], ["remixer"] if ON_JAX else KINDS)
SOME_DECODERS = slow_but(["smlp"], [*STACKS, *MIXTURES])
# There are three kinds of caches: of keys, of mixing, and of a Mixer's hidden units.
EACH_CACHE = slow_but(["remixer"], KINDS, slow=["t5_1_1", "mixer"])


def tiny_model(
    kind,
    dropout_rate=0.0,
    max_length=16,
    vocab_size=VOCAB_SIZE,
    num_layers=2,
    remixer=None,
    **kwargs,
):
    """An encoder-decoder of one of `KINDS`, each stack of `num_layers`, built.

    `remixer`: options of its Remixer blocks.
    """
    options = remixer or {}

    def stack(causal):
        attention = {"num_heads": 2, "d_kv": 4, "dropout_rate": dropout_rate}
        self_attention = functools.partial(SelfAttention, **attention)
        cross_attention = functools.partial(CrossAttention, **attention)
        remixer = functools.partial(
            RemixerBlock,
            d_ff=12,
            residual="hidden",
            dropout_rate=dropout_rate,
            **options,
        )
        tiny_attention = functools.partial(
            TinyAttention, d_kv=4, dropout_rate=dropout_rate
        )
        gated_mlp = functools.partial(
            GatedMLP,
            d_ff=12,
            gate=functools.partial(SpatialGatingUnit, toeplitz=True),
            attention=tiny_attention if kind == "amlp" else None,
        )
        if causal:
            token_mlp = functools.partial(BlockTokenMLP, 8, window=4, gated=True)
        else:
            token_mlp = functools.partial(TokenMixingMLP, 8, gated=True)
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
        position_bias = functools.partial(RelativePositionBias, num_heads=2)
        return functools.partial(
            TransformerStack,
            sublayers,
            num_layers=num_layers,
            position_bias=position_bias if attends else None,
            norm=LayerNorm if gmlp else RMSNorm,
            dropout_rate=dropout_rate,
            max_length=max_length,
        )

    model = EncoderDecoder(stack(False), stack(True), vocab_size, d_model=8, **kwargs)
    model.build()
    return model


def tiny_stack(kind, max_length=24, dropout_rate=0.0):
    """A factory of 2 layers of `bert`, `gmlp` or `amlp`; `cbow` has none."""
    gate = functools.partial(SpatialGatingUnit, toeplitz=True)
    gated = functools.partial(GatedMLP, d_ff=12, gate=gate)
    attention = functools.partial(TinyAttention, d_kv=4)
    sublayers = {
        "bert": {
            "self_attention": functools.partial(BertSelfAttention, num_heads=2, d_kv=4),
            "feed_forward": functools.partial(BertFeedForward, d_ff=12),
        },
        "gmlp": {"gmlp": gated},
        "amlp": {"gmlp": functools.partial(gated, attention=attention)},
        "cbow": {},
    }[kind]
    return functools.partial(
        TransformerStack,
        sublayers,
        num_layers=2,
        norm=LayerNorm,
        positions=PositionEmbedding if kind == "bert" else None,
        input_norm=True,
        dropout_rate=dropout_rate,
        max_length=max_length,
    )


def tiny_encoder(kind, head=MaskedLMHead, num_token_types=2, **kwargs):
    """An `EncoderOnly` of `tiny_stack`, built."""
    model = EncoderOnly(
        tiny_stack(kind), head, VOCAB_SIZE, 8, num_token_types, **kwargs
    )
    model.build()
    return model


def tiny_mixture(
    kind,
    max_length=24,
    routing="deterministic",
    vocab_size=VOCAB_SIZE,
    **experts,
):
    """A factory of 2 causal layers, the second with a mixture; see `MIXTURES`.

    `experts` are arguments of `MoE`.
    """
    router = {
        "switch": SwitchRouter,
        "gshard": GShardRouter,
        "hash": functools.partial(HashRouter, vocab_size=vocab_size),
    }.get(kind, BaseRouter)
    experts = {"num_experts": 3, "d_ff": 12, "router": router, **experts}
    experts = {"token_experts": functools.partial(MoE, **experts)}
    dense = {"gmlp": functools.partial(GatedMLP, d_ff=12)}
    if kind == "smlp":
        gate = functools.partial(SparseSpatialGate, num_experts=3, routing=routing)
        spatial = {"spatial_experts": functools.partial(GatedMLP, d_ff=12, gate=gate)}
        layers = [dense, {**experts, **spatial}]
    elif kind == "gmlp_tmoe":
        layers = [dense, {**experts, **dense}]
    else:
        attention = functools.partial(BertSelfAttention, num_heads=2, d_kv=4)
        feed_forward = {"feed_forward": functools.partial(BertFeedForward, d_ff=12)}
        attention = {"self_attention": attention}
        layers = [{**attention, **feed_forward}, {**attention, **experts}]
    return functools.partial(
        TransformerStack, layers, num_layers=2, norm=LayerNorm, max_length=max_length
    )


def tiny_decoder(kind, vocab_size=VOCAB_SIZE, **kwargs):
    """A `DecoderOnly` of `tiny_stack` or `tiny_mixture`, built."""
    if kind in MIXTURES:
        stack = tiny_mixture(kind, vocab_size=vocab_size)
    else:
        stack = tiny_stack(kind)
    model = DecoderOnly(stack, vocab_size, 8, **kwargs)
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


def read_by(model, batch):
    """The tensors that a model reads: a language model has no separate inputs."""
    if not isinstance(model, DecoderOnly):
        return batch
    return {name: x for name, x in batch.items() if name.startswith("decoder_")}


def check_rows_stand_alone(model, batch):
    """Checks that an example gives alone what it gives among others; returns all."""
    call, batch = compiled(model), read_by(model, batch)
    logits = np.array(call(batch))
    alone = np.array(call({key: value[-1:] for key, value in batch.items()}))
    np.testing.assert_allclose(alone, logits[-1:], atol=1e-4)
    return logits
