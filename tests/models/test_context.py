"""The facts about tokens that models hand to their layers."""

import functools

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import DecodeState, PositionWise, SelfAttention, Sublayer
from remixer_tf.models import (
    DecoderOnly,
    EncoderDecoder,
    EncoderOnly,
    MaskedLMHead,
    TransformerStack,
)
from tests.models.tiny import VOCAB_SIZE, read_by, tiny_batch

BATCH = tiny_batch()
INPUTS, TARGETS = BATCH["encoder_input_tokens"], BATCH["decoder_target_tokens"]
SEGMENTS = np.array([[1, 1, 1, 2, 2, 2, 0]] * 3, "int32")


class Probe(PositionWise):
    """Remembers the last context it saw."""

    def call(self, x, context, training=False):
        self.tokens, self.token_mask = context.tokens, context.token_mask
        return x


def stack():
    return functools.partial(TransformerStack, {"probe": Probe}, num_layers=1)


def built(model):
    model.build()
    return model


def assert_saw(stack, tokens, token_mask):
    probe = stack.blocks[0].sublayer
    np.testing.assert_array_equal(ops.convert_to_numpy(probe.tokens), tokens)
    if token_mask is None:
        assert probe.token_mask is None
    else:
        mask = ops.convert_to_numpy(probe.token_mask)
        assert mask.dtype == "int32"
        np.testing.assert_array_equal(mask, token_mask)


@pytest.mark.parametrize("mask_padding", [True, False])
def test_an_encoder_alone(mask_padding):
    model = EncoderOnly(stack(), MaskedLMHead, VOCAB_SIZE, 8, mask_padding=mask_padding)
    built(model)({"encoder_input_tokens": INPUTS})
    assert_saw(model.encoder, INPUTS, INPUTS > 0)


@pytest.mark.parametrize("model_class", [EncoderDecoder, DecoderOnly])
def test_what_writes_text(model_class):
    stacks = [stack()] * (1 + (model_class is EncoderDecoder))
    model = built(model_class(*stacks, VOCAB_SIZE, d_model=8))
    tokens = BATCH["decoder_input_tokens"]
    batch = read_by(model, BATCH)
    model(batch)
    if model_class is EncoderDecoder:
        assert_saw(model.encoder, INPUTS, INPUTS > 0)
    assert tokens[0, 0] == 0  # real, though its id is padding's
    assert_saw(model.decoder, tokens, TARGETS > 0)
    model({**batch, "decoder_segment_ids": SEGMENTS})
    assert_saw(model.decoder, tokens, SEGMENTS > 0)
    del (without := dict(batch))["decoder_target_tokens"]
    model(without)
    assert_saw(model.decoder, tokens, None)

    context, cache = model.start_decoding(BATCH, max_length=4, hypotheses=2)
    if model_class is EncoderDecoder:
        assert_saw(model.encoder, INPUTS, INPUTS > 0)
    cache = model.grow_cache(context, cache, max_length=6)
    last = np.arange(2, 8, dtype="int32")
    state = DecodeState(ops.convert_to_tensor(0), ops.arange(6, dtype="int32"))
    logits, _ = model.decode_step(ops.convert_to_tensor(last), cache, context, state)
    assert tuple(logits.shape) == (6, VOCAB_SIZE)
    assert_saw(model.decoder, last[:, None], None)


@pytest.mark.parametrize("model_class", [EncoderDecoder, DecoderOnly])
def test_models_say_which_stack_is_causal(model_class):
    def attention(**options):
        sublayer = functools.partial(SelfAttention, 2, 4, **options)
        return functools.partial(TransformerStack, {"attention": sublayer}, 1)

    encoder = [attention()] if model_class is EncoderDecoder else []
    model = built(model_class(*encoder, attention(), VOCAB_SIZE, 8))
    assert model.decoder.blocks[0].sublayer.causal is True
    if encoder:
        assert model.encoder.blocks[0].sublayer.causal is False
    with pytest.raises(ValueError, match="'decoder/layer_0_attention'.*contradicts"):
        model_class(*encoder, attention(causal=False), VOCAB_SIZE, 8)


def test_a_layer_without_steps_does_not_decode_as_if_it_needed_none():
    class Mean(Sublayer):
        causal = True

        def call(self, x, context, training=False):
            count = ops.arange(1, x.shape[1] + 1, dtype=x.dtype)
            return ops.cumsum(x, axis=1) / count[:, None]

    stack = functools.partial(TransformerStack, {"mean": Mean}, num_layers=1)
    model = built(DecoderOnly(stack, VOCAB_SIZE, 8))
    with pytest.raises(ValueError, match="Mean has no decode_step.*PositionWise"):
        model.start_decoding({"encoder_input_tokens": INPUTS}, 4)
