"""Beam search with parts that were not written for it.

A search is right where the score of each answer is that of a call of the whole model on
the answer. It is wrong where a hypothesis reads what another one wrote.
"""

import functools
import re

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.decoding import T5Rules, beam_search, sample
from remixer_tf.layers import (
    BertSelfAttention,
    BlockTokenMLP,
    Context,
    CrossAttention,
    GatedMLP,
    LengthMixing,
    MoE,
    PositionalAttention,
    RemixerBlock,
    SelfAttention,
    SlidingTokenMLP,
    Sublayer,
    TinyAttention,
)
from remixer_tf.layers.base import each_hypothesis, reorders_cache
from remixer_tf.models import Block, DecoderOnly, EncoderDecoder, TransformerStack
from tests.compiled import compiled
from tests.decoding import test_own_steps
from tests.decoding.scored import score_answers
from tests.layers.harness import randomize

D_MODEL, VOCAB_SIZE = 8, 9
TOKENS = np.array([[3, 4, 5, 0], [6, 7, 0, 0], [2, 8, 3, 4]], "int32")
BATCH = {"encoder_input_tokens": TOKENS}


class Remembers:
    """Adds the sum of the inputs so far, which a step keeps besides what it inherits.

    It names a mixin, whose steps those of the layer follow.
    """

    def call(self, x, context, **kwargs):
        return super().call(x, context, **kwargs) + ops.cumsum(x, axis=1)

    def init_cache(self, batch_size, max_length, context):
        kept = super().init_cache(batch_size, max_length, context)
        return {**kept, "sum": ops.zeros((batch_size, 1, D_MODEL))}

    def decode_step(self, x, cache, context, state):
        kept = {name: value for name, value in cache.items() if name != "sum"}
        y, kept = super().decode_step(x, kept, context, state)
        total = cache["sum"] + x
        return y + total, {**kept, "sum": total}


class OwnSelf(Remembers, SelfAttention):
    pass


class OwnCross(Remembers, CrossAttention):
    pass


class OwnMixing(Remembers, LengthMixing):
    pass


class OwnRemixer(Remembers, RemixerBlock):
    pass


class OwnGatedMLP(Remembers, GatedMLP):
    pass


class Wraps(Sublayer):
    """A layer of ours in one's own."""

    causal = None

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = SelfAttention(2, 4, name="inner")

    def build(self, input_shape):
        self.inner.build(input_shape)

    def call(self, x, context, training=False):
        return self.inner(x, context=context)

    def init_cache(self, *arguments):
        return self.inner.init_cache(*arguments)

    def decode_step(self, *arguments):
        return self.inner.decode_step(*arguments)


class ReadsEncoder(Sublayer):
    """`x` times the mean of what was encoded, which a step computes anew."""

    causal = True

    def call(self, x, context, training=False):
        mask = ops.cast(context.encoded_mask, x.dtype)[:, :, None]
        mean = ops.sum(context.encoded * mask, axis=1, keepdims=True)
        return x * mean / ops.sum(mask, axis=1, keepdims=True)

    def decode_step(self, x, cache, context, state):
        return self(x, context=context), cache


class OwnBlock(Remembers, Block):
    pass


class Counts(DecoderOnly):
    """Adds to logits how often each token was read: a cache next to the blocks'."""

    def call(self, batch, training=False, logits=True):
        read = ops.one_hot(batch["decoder_input_tokens"], VOCAB_SIZE)
        return super().call(batch, training) + 0.5 * ops.cumsum(read, axis=1)

    def start_decoding(self, batch, max_length, hypotheses=1):
        context, cache = super().start_decoding(batch, max_length, hypotheses)
        rows = len(batch["encoder_input_tokens"]) * hypotheses
        return context, {**cache, "read": ops.zeros((rows, VOCAB_SIZE))}

    def decode_step(self, tokens, cache, context, state):
        logits, new = super().decode_step(tokens, cache, context, state)
        read = cache["read"] + ops.one_hot(tokens, VOCAB_SIZE)
        return logits + 0.5 * read, {**new, "read": read}


part = functools.partial
GATE = part(GatedMLP, d_ff=2 * D_MODEL)
# name: (sublayer, whether its cache is reordered)
PARTS = {
    "self": (part(OwnSelf, num_heads=2, d_kv=4), True),
    "cross": (part(OwnCross, num_heads=2, d_kv=4), True),
    "mixing": (part(OwnMixing, 2), True),
    "remixer": (part(OwnRemixer, num_mixing_heads=2), True),
    "gmlp": (part(OwnGatedMLP, d_ff=12), True),
    "wraps": (Wraps, True),
    "reads_encoder": (ReadsEncoder, True),
    "positions_in_gmlp": (
        part(GATE, attention=part(PositionalAttention, num_heads=2, d_kv=4)),
        True,
    ),
    "own_in_gmlp": (test_own_steps.LAYERS["own_attention"], True),
    "own_gate": (test_own_steps.LAYERS["own_gate"], True),
    # Ours: decoding is as quick as it was.
    "ours_positions": (part(PositionalAttention, num_heads=2, d_kv=4), True),
    "ours_sliding": (part(SlidingTokenMLP, 8, window=3), True),
    "ours_blocks": (part(BlockTokenMLP, 8, window=4), True),
    "ours_self": (part(SelfAttention, num_heads=2, d_kv=4), False),
    "ours_bert": (part(BertSelfAttention, num_heads=2, d_kv=4), False),
    "ours_cross": (part(CrossAttention, num_heads=2, d_kv=4), False),
    "ours_mixing": (part(LengthMixing, 2), False),
    "ours_remixer": (part(RemixerBlock, num_mixing_heads=2), False),
    "ours_gmlp": (GATE, False),
    "ours_amlp": (part(GATE, attention=part(TinyAttention, d_kv=4)), False),
    "ours_experts": (part(MoE, num_experts=3, d_ff=8), False),
}


ON_JAX = keras.backend.backend() == "jax"
QUICK = ["cross"] if ON_JAX else ["positions_in_gmlp", "cross"]
# Other tests search through most of ours.
SLOW = {n: pytest.mark.slower if "ours" in n else pytest.mark.slow for n in PARTS}
EACH = [pytest.param(n, marks=[SLOW[n]] * (n not in QUICK)) for n in PARTS]


def make_model(sublayers, block=Block):
    attention = {"attention": part(SelfAttention, num_heads=2, d_kv=4)}
    stack = part(TransformerStack, num_layers=1, max_length=8)
    encoder, decoder = part(stack, attention), part(stack, sublayers, block=block)
    model = EncoderDecoder(encoder, decoder, VOCAB_SIZE, D_MODEL)
    model.build()
    randomize(model)
    return model


def check(model):
    options = {"max_length": 4, "rules": T5Rules(), "beams": 3, "eos_id": -1}
    search = part(beam_search, model, n_best=3, **options)
    found = compiled(search, model)(BATCH).answers
    expected = score_answers(model, BATCH, np.array(found.tokens), eos_id=-1)
    np.testing.assert_allclose(found.scores, expected, atol=2e-3)


@pytest.mark.parametrize("name", PARTS)
def test_which_caches_are_reordered(name):
    factory, reorders = PARTS[name]
    assert reorders_cache(factory(name="part", dtype="float32")) == reorders


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_a_search_through_each(name):
    first = {"first": part(SelfAttention, num_heads=2, d_kv=4)}
    check(make_model({**first, name: PARTS[name][0]}))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cross", "reads_encoder", "ours_cross"])
def test_several_samples(name):
    """Answers to an example are as many rows, and share what was encoded."""
    model = make_model({name: PARTS[name][0]})
    options = {"num_samples": 3, "seed": 1, "eos_id": -1}
    search = part(sample, model, max_length=4, **options)
    found = compiled(search, model)(BATCH).answers
    expected = score_answers(model, BATCH, np.array(found.tokens), eos_id=-1)
    np.testing.assert_allclose(found.scores, expected, atol=2e-3)


@pytest.mark.slow
def test_a_block_of_ones_own():
    check(make_model({"self": PARTS["ours_self"][0]}, block=OwnBlock))


@pytest.mark.slow
def test_a_model_of_ones_own(monkeypatch):
    monkeypatch.setattr("remixer_tf.decoding.search.FIRST_CACHE_LENGTH", 2)
    model = Counts(part(TransformerStack, {"self": PARTS["ours_self"][0]}, 1), 9, 8)
    model.build()
    randomize(model)
    check(model)


@pytest.mark.parametrize("shape", [(1,), ()])
def test_a_cache_without_rows_is_told(shape):
    class Own(Sublayer):
        causal = True

        def call(self, x, context, training=False):
            return x

        def init_cache(self, batch_size, max_length, context):
            return {"step": ops.zeros(shape)}

        def decode_step(self, x, cache, context, state):
            return x, cache

    stack = part(TransformerStack, {"own": Own}, 1)
    model = DecoderOnly(stack, VOCAB_SIZE, D_MODEL)
    model.build()
    batch = {"encoder_input_tokens": np.ones((2, 1), "int32")}
    words = rf"{re.escape(str(shape))} for 6 rows. Return such tensors"
    with pytest.raises(ValueError, match=words):
        beam_search(model, batch, 2, T5Rules(), beams=3)


def test_no_examples_have_no_hypotheses():
    """A request may have no rows; `grow_cache` asks for a single one."""

    def rows_of(encoded, rows):
        return ops.shape(each_hypothesis(Context(encoded=encoded), rows).encoded)[0]

    assert rows_of(ops.zeros((0, 4, D_MODEL)), 1) == 0
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        spec = tf.TensorSpec([None, 4, D_MODEL])
        count = tf.function(lambda x: rows_of(x, 3 * ops.shape(x)[0]), [spec])
        assert [int(count(tf.zeros([n, 4, D_MODEL]))) for n in (0, 2)] == [0, 6]
