"""A prompt is read in one call: the same answers as read token by token."""

import functools

import numpy as np
import pytest
from keras import ops

from remixer_tf.decoding import (
    AnswerLimits,
    T5Rules,
    beam_search,
    greedy_decode,
    sample,
)
from remixer_tf.layers import (
    BlockTokenMLP,
    GatedFeedForward,
    RelativePositionBias,
    RemixerBlock,
    SelfAttention,
    SlidingTokenMLP,
)
from remixer_tf.models import DecoderOnly, TransformerStack
from tests.compiled import in_graph
from tests.layers.harness import randomize
from tests.models.tiny import (
    MIXTURES,
    ON_JAX,
    STACKS,
    VOCAB_SIZE,
    slow_but,
    tiny_decoder,
    tiny_model,
)
from tests.training.test_own_layers import MeanInSegment

WIDTH, MAX_LENGTH = 8, 6
OWN = {
    "t5": functools.partial(SelfAttention, num_heads=2, d_kv=4),
    "remixer": functools.partial(RemixerBlock, d_ff=12, residual="hidden"),
    "remixer_heads": functools.partial(RemixerBlock, num_mixing_heads=2),
    "mixer": functools.partial(BlockTokenMLP, 8, window=4),
    "sliding_mixer": functools.partial(SlidingTokenMLP, 8, window=3, gated=True),
    "a_users_own": MeanInSegment,
}
QUICK = ["t5"] if ON_JAX else ["remixer_heads"]
SLOW = ["t5", "smlp"]
FAMILIES = slow_but(QUICK, [*STACKS, *MIXTURES, *OWN], slow=SLOW)
LIMITS = AnswerLimits(min_length=2, no_repeat_ngram_size=2, repetition_penalty=1.3)
SEARCHES = {
    "greedy": greedy_decode,
    "greedy_limits": functools.partial(greedy_decode, limits=LIMITS),
    "samples": functools.partial(sample, num_samples=3),
    "beams": functools.partial(beam_search, rules=T5Rules(), beams=3, n_best=2),
}


def make(family, **kwargs):
    if family in OWN:
        feed_forward = functools.partial(GatedFeedForward, d_ff=12)
        bias = functools.partial(RelativePositionBias, num_heads=2)
        stack = functools.partial(
            TransformerStack,
            {"own": OWN[family], "feed_forward": feed_forward},
            num_layers=2,
            position_bias=bias,
            max_length=24,
        )
        model = DecoderOnly(stack, VOCAB_SIZE, 8, **kwargs)
        model.build()
    else:
        model = tiny_decoder(family, **kwargs)
    randomize(model)
    return model


def prompts(*lengths):
    """A batch with a prompt of each length, int32 `[rows, WIDTH]`."""
    rng = np.random.default_rng(3)
    tokens = rng.integers(2, VOCAB_SIZE, (len(lengths), WIDTH)).astype("int32")
    real = np.arange(WIDTH) < np.array(lengths)[:, None]
    return {"encoder_input_tokens": np.where(real, tokens, 0).astype("int32")}


class TokenByToken:
    """A model that reads a prompt by its decoding steps."""

    def __init__(self, model):
        self.model = model

    def __getattr__(self, name):
        return getattr(self.model, name)

    def prefill(self, tokens, cache, context, state):
        def step(t, cache):
            token, here = ops.take(tokens, t, axis=1), state._replace(step=t)
            return t + 1, self.model.decode_step(token, cache, context, here)[1]

        start = ops.convert_to_tensor(0, "int32"), cache
        return ops.while_loop(lambda t, _: t < state.step, step, start)[1]


def make_check(model, search, tolerance=1e-4):
    """A function of a batch: the same answers both ways; returns their tokens."""
    whole, by_steps = (
        in_graph(functools.partial(search, reader, max_length=MAX_LENGTH), model)
        for reader in (model, TokenByToken(model))
    )

    def check(batch):
        decoded, expected = whole(batch), by_steps(batch)
        np.testing.assert_array_equal(decoded.tokens, expected.tokens)
        np.testing.assert_allclose(decoded.scores, expected.scores, atol=tolerance)
        return np.array(decoded.tokens)

    return check


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reads_a_prompt_as_its_steps_do(family):
    make_check(make(family), greedy_decode)(prompts(8, 5, 6))


@pytest.mark.slower
@pytest.mark.parametrize("search", SEARCHES)
def test_every_search(search):
    make_check(make("amlp"), SEARCHES[search])(prompts(8, 5, 6))


@pytest.mark.slower
def test_prompts_of_every_length_while_the_cache_grows(monkeypatch):
    monkeypatch.setattr("remixer_tf.decoding.search.FIRST_CACHE_LENGTH", 2)
    check = make_check(make("t5"), SEARCHES["beams"])
    for lengths in [(8, 8), (1, 1), (0, 0), (0, 3), (4, 4), (2, 7)]:
        check(prompts(*lengths))


@pytest.mark.slower
def test_beams_of_mixing_heads_while_the_cache_grows(monkeypatch):
    monkeypatch.setattr("remixer_tf.decoding.search.FIRST_CACHE_LENGTH", 1)
    make_check(make("remixer_heads"), SEARCHES["beams"])(prompts(5, 7))


@pytest.mark.slow
@pytest.mark.slow_on_jax
def test_bfloat16():
    model = make("gmlp", dtype="mixed_bfloat16")
    make_check(model, greedy_decode, tolerance=0.1)(prompts(8, 8))


def test_the_answer_depends_on_every_token_of_the_prompt():
    model, batch = make("t5"), prompts(6)
    read = in_graph(functools.partial(greedy_decode, model, max_length=1), model)
    score = np.array(read(batch).scores)
    for t in range(6):
        changed = {name: tokens.copy() for name, tokens in batch.items()}
        changed["encoder_input_tokens"][0, t] += 1
        assert abs(np.array(read(changed).scores) - score) > 1e-5


@pytest.mark.slower
@pytest.mark.parametrize("search", ["greedy", "beams"])
def test_an_encoder_decoder_goes_on_from_given_targets(search):
    model = tiny_model("remixer")
    randomize(model)
    given = prompts(4, 2)["encoder_input_tokens"][:, :4]
    check = make_check(model, SEARCHES[search])
    answers, others = (
        check({**prompts(8, 5), "decoder_prompt_tokens": tokens})
        for tokens in (given, np.where(given > 0, given + 1, 0).astype("int32"))
    )
    assert (answers != others).any()
