"""Own classes whose steps are not those of the `prefill` that they inherit.

The reference is the model called on the whole of what is read and written so far.
"""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.decoding import greedy_decode
from remixer_tf.layers import (
    BlockTokenMLP,
    GatedFeedForward,
    GatedMLP,
    LengthMixing,
    RelativePositionBias,
    RemixerBlock,
    SelfAttention,
    SlidingTokenMLP,
    SpatialGatingUnit,
    Sublayer,
)
from remixer_tf.models import Block, DecoderOnly, TransformerStack
from remixer_tf.testing import check_sublayer
from tests.compiled import in_graph
from tests.decoding import recurrent
from tests.decoding.test_prefill import make, prompts
from tests.layers.harness import randomize
from tests.models.tiny import VOCAB_SIZE

ON_JAX = keras.backend.backend() == "jax"
MAX_LENGTH = 4


class Doubled:
    """Reads its input twice as large, in training and in steps."""

    def call(self, x, context, **kwargs):
        return super().call(2 * x, context, **kwargs)

    def decode_step(self, x, cache, context, state, *others):
        return super().decode_step(2 * x, cache, context, state, *others)


class DoubledAttention(Doubled, SelfAttention):
    pass


class DoubledMixing(Doubled, LengthMixing):
    pass


class DoubledRemixer(Doubled, RemixerBlock):
    pass


class DoubledSliding(Doubled, SlidingTokenMLP):
    pass


class DoubledBlocks(Doubled, BlockTokenMLP):
    pass


class DoubledGatedMLP(Doubled, GatedMLP):
    pass


class DoubledGate(Doubled, SpatialGatingUnit):
    pass


class Mean(Sublayer):
    """`mean(x of the past) W`, to `d_out` channels: an attention of `GatedMLP`."""

    causal = True

    def __init__(self, d_out, **kwargs):
        super().__init__(**kwargs)
        self.d_out = d_out

    def build(self, input_shape):
        self.d_model = input_shape[-1]
        shape = self.d_model, self.d_out
        self.kernel = self.add_weight(name="kernel", shape=shape, axes=(None, None))

    def call(self, x, context, training=False):
        count = ops.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        return ops.matmul(ops.cumsum(x, axis=1) / count, self.kernel)

    def init_cache(self, batch_size, max_length, context):
        return {"sum": ops.zeros((batch_size, 1, self.d_model), self.compute_dtype)}

    def decode_step(self, x, cache, context, state):
        total = cache["sum"] + x
        mean = total / ops.cast(state.step + 1, x.dtype)
        return ops.matmul(mean, self.kernel), {"sum": total}


class HalfGate(Mean):
    """A gate that is no `SpatialGatingUnit`: half of z times the mean."""

    variant = "split"

    def __init__(self, **kwargs):
        super().__init__(None, **kwargs)

    def build(self, input_shape):
        self.d_out = input_shape[-1] // 2
        super().build(input_shape)

    def call(self, z, context, added=None):
        return z[..., : self.d_out] * super().call(z, context)

    def decode_step(self, z, cache, context, state, added=None):
        y, cache = super().decode_step(z, cache, context, state)
        return z[..., : self.d_out] * y, cache


class NormOfOutput(Block):
    def call(self, x, context, training=False):
        y = self.sublayer(x, context=context, training=training)
        return self._add(x, self.norm(y), training)

    def decode_step(self, x, cache, context, state):
        y, cache = self.sublayer.decode_step(x, cache, context, state)
        return self._add(x, self.norm(y)), cache


class NextToken(DecoderOnly):
    """Reads the id after each token's."""

    def call(self, batch, training=False):
        tokens = (batch["decoder_input_tokens"] + 1) % VOCAB_SIZE
        return super().call({"decoder_input_tokens": tokens}, training)

    def decode_step(self, tokens, cache, context, state):
        return super().decode_step((tokens + 1) % VOCAB_SIZE, cache, context, state)


ATTENTION = functools.partial(SelfAttention, num_heads=2, d_kv=4)
LAYERS = {
    "attention": functools.partial(DoubledAttention, num_heads=2, d_kv=4),
    "length_mixing": functools.partial(DoubledMixing, 2),
    "remixer": functools.partial(DoubledRemixer, d_ff=12, residual="hidden"),
    "sliding_mixer": functools.partial(DoubledSliding, 8, window=3),
    "mixer": functools.partial(DoubledBlocks, 8, window=4),
    "gmlp": functools.partial(DoubledGatedMLP, d_ff=12),
    "gate": functools.partial(GatedMLP, d_ff=12, gate=DoubledGate),
    "own_gate": functools.partial(GatedMLP, d_ff=12, gate=HalfGate),
    "own_attention": functools.partial(GatedMLP, d_ff=12, attention=Mean),
}


def make_model(layer=ATTENTION, kind=DecoderOnly, max_length=24, **kwargs):
    feed_forward = functools.partial(GatedFeedForward, d_ff=12)
    stack = functools.partial(
        TransformerStack,
        {"own": layer, "feed_forward": feed_forward},
        num_layers=2,
        position_bias=functools.partial(RelativePositionBias, num_heads=2),
        max_length=max_length,
        **kwargs,
    )
    model = kind(stack, VOCAB_SIZE, 8)
    model.build()
    randomize(model)
    return model


def answers_of_calls(model, tokens, length):
    """Greedy tokens and their scores, by a call on all tokens for each of them."""
    call, written, scores = in_graph(model, model), [], 0
    ends = (tokens > 0).sum(axis=1)
    rows = np.arange(len(tokens))
    inputs = np.pad(tokens, [(0, 0), (1, length)])
    for t in range(length):
        logits = np.array(call({"decoder_input_tokens": inputs}), "float64")
        logits = logits[rows, ends + t]
        best = logits.argmax(axis=-1)
        scores += logits[rows, best] - np.log(np.exp(logits).sum(axis=-1))
        written.append(best)
        inputs[rows, ends + t + 1] = best
    return np.stack(written, axis=1), scores


def check(model, *lengths, max_length=MAX_LENGTH):
    batch = prompts(*lengths)
    search = functools.partial(greedy_decode, model, max_length=max_length, eos_id=-1)
    found = in_graph(search, model)(batch)
    tokens, scores = answers_of_calls(model, batch["encoder_input_tokens"], max_length)
    np.testing.assert_array_equal(found.tokens, tokens)
    np.testing.assert_allclose(found.scores, scores, atol=1e-4)


QUICK = "attention", "own_gate"
QUICK += () if ON_JAX else ("length_mixing", "remixer")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slower] * (n not in QUICK)) for n in LAYERS],
)
def test_layers_and_their_parts(name):
    check(make_model(LAYERS[name]), 8, 6)


@pytest.mark.slow
@pytest.mark.slow_on_jax
def test_a_block():
    check(make_model(block=NormOfOutput), 8, 6)


def test_a_model():
    check(make_model(kind=NextToken), 8, 6)


@pytest.mark.slow_on_jax
def test_shipped_layers():
    check(make_model(), 8, 6)


@pytest.mark.slow_on_jax
def test_check_sublayer_takes_the_steps_too():
    check_sublayer(LAYERS["attention"], causal=True, max_length=24)
    with pytest.raises(ValueError, match="mixes packed examples"):  # A later check.
        check_sublayer(LAYERS["own_attention"], causal=True, max_length=24)


class Steps:
    """A model without `prefill`."""

    def __init__(self, model):
        self.prompt, self.start_decoding = model.prompt, model.start_decoding
        self.grow_cache, self.reorder_cache = model.grow_cache, model.reorder_cache
        self.decode_step = model.decode_step


def test_a_model_without_prefill():
    model, batch = recurrent.Recurrent(reads_prompt=True), recurrent.inputs()
    search = functools.partial(greedy_decode, Steps(model), max_length=3, eos_id=-1)
    found = in_graph(search, model)(batch)
    for row, prompt in enumerate(batch["encoder_input_tokens"]):
        written = []
        for _ in range(3):
            written.append(int(model.logits(prompt, written).argmax()))
        assert np.array(found.tokens[row]).tolist() == written


@pytest.mark.slow
@pytest.mark.slow_on_jax
def test_a_decoder_without_a_limit_reads_more_than_its_stacks_max_length():
    check(make_model(max_length=6), 3, 4, max_length=5)


def test_a_layer_refuses_more_than_its_max_length():
    """The prompt is 8 wide."""
    match = "25 tokens is too long for LengthMixing .* made for max_length=24"
    with pytest.raises(ValueError, match=match):
        greedy_decode(make("gmlp"), prompts(3), 17)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's")
@pytest.mark.parametrize("family", ["t5", "gmlp"])
def test_a_program_of_xla_on_tensorflow(family):
    import tensorflow as tf

    model, batch = make(family), prompts(8, 6)
    search = functools.partial(greedy_decode, model, max_length=3, eos_id=-1)
    found = tf.function(search, jit_compile=True, autograph=False)(
        {name: tf.constant(x) for name, x in batch.items()}
    )
    tokens, scores = answers_of_calls(model, batch["encoder_input_tokens"], 3)
    np.testing.assert_array_equal(found.tokens, tokens)
    np.testing.assert_allclose(found.scores, scores, atol=1e-4)
