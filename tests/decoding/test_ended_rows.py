"""Rows that have ended leave a batch: the same answers as if they stayed."""

import functools

import numpy as np
import pytest

from remixer_tf.decoding import (
    AnswerLimits,
    Choice,
    Decoded,
    HuggingFaceRules,
    Sampling,
    Search,
    T5Rules,
    beam_search,
    decode,
    greedy_decode,
    sample,
    search,
)
from remixer_tf.decoding.ended_rows import (
    TIMES,
    WORTH,
    compile_search,
    steps_waited,
)
from tests.compiled import in_graph
from tests.decoding.recurrent import Recurrent, inputs
from tests.decoding.test_prefill import make, prompts
from tests.models.tiny import KINDS, tiny_batch, tiny_model

ROWS = 9
LIMITS = AnswerLimits(no_repeat_ngram_size=2, repetition_penalty=1.2)
SEARCHES = {
    "greedy": greedy_decode,
    "limits": functools.partial(greedy_decode, limits=LIMITS),
    "t5": functools.partial(beam_search, rules=T5Rules(), beams=3, n_best=2),
    "huggingface": functools.partial(
        beam_search, rules=HuggingFaceRules(), beams=2, n_best=2
    ),
    "samples": functools.partial(
        sample, sampling=Sampling(top_k=4), num_samples=2, seed=3
    ),
}


def check(model, batch, max_length, names, **options):
    def both(batch):
        return [
            SEARCHES[name](model, {**batch, **ends}, max_length, **options)
            for name in names
            for ends in ({}, {search.HALVINGS: 2})
        ]

    found = in_graph(both, model)(batch)
    for stay, leave in zip(found[::2], found[1::2], strict=True):
        np.testing.assert_array_equal(stay.tokens, leave.tokens)
        np.testing.assert_allclose(stay.scores, leave.scores, atol=1e-5)
        if stay.answers:
            np.testing.assert_array_equal(stay.answers.tokens, leave.answers.tokens)
            np.testing.assert_allclose(
                stay.answers.scores, leave.answers.scores, atol=1e-5
            )
    return found


def with_lengths(batch, longest):
    """Gives each row of a batch its own longest answer."""
    rows = len(batch["encoder_input_tokens"])
    lengths = np.random.default_rng(1).permutation(np.arange(rows) % longest + 1)
    return batch | {"max_length": lengths.astype("int32")}


@pytest.fixture
def short_caches(monkeypatch):
    """Caches that grow while rows end."""
    monkeypatch.setattr(search, "FIRST_CACHE_LENGTH", 4)


@pytest.mark.slow
@pytest.mark.slow_on_jax
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slower] * (n not in ("t5", "samples")))
        for n in SEARCHES
    ],
)
def test_the_same_answers(name, short_caches):
    batch = with_lengths(inputs(ROWS), 9)
    check(Recurrent(), batch, 9, [name], eos_id=-1)


@pytest.mark.slower
@pytest.mark.slow_on_jax
def test_rows_whose_prompts_are_longer_than_the_first_cache(short_caches):
    batch = with_lengths(inputs(ROWS), 5)
    check(Recurrent(reads_prompt=True), batch, 5, ["greedy"], eos_id=-1)


def test_the_rows_that_run_are_computed_alone():
    rows = set()

    class Counting(Recurrent):
        def decode_step(self, tokens, cache, context, state):
            rows.add(tokens.shape[0])
            return super().decode_step(tokens, cache, context, state)

    check(Counting(), with_lengths(inputs(ROWS), 9), 9, ["greedy"], eos_id=-1)
    assert rows == {9, 5, 3}


@pytest.mark.slow
@pytest.mark.slow_on_jax
def test_one_row():
    check(Recurrent(), inputs(1), 9, ["greedy"])


@pytest.mark.slow_on_jax
def test_a_search_that_is_made_beforehand_keeps_all_rows():
    batch = with_lengths(inputs(ROWS), 9)
    own = np.arange(2, ROWS + 2, dtype="int32")[:, None] % 5

    def choose(log_probs, hypotheses, place, state):
        return Choice(own, ended=own < 0)

    batch[search.HALVINGS] = 2
    found, _ = decode(Recurrent(), batch, 9, Search(choose), eos_id=-1)
    lengths = batch["max_length"]
    for row in range(ROWS):
        assert (np.array(found.tokens)[row, 0, : lengths[row]] == own[row]).all()


@pytest.mark.slower
@pytest.mark.slow_on_jax
@pytest.mark.parametrize("kind", KINDS[:4])
def test_of_encoder_decoders(kind, short_caches):
    tokens = np.tile(tiny_batch()["encoder_input_tokens"], (3, 1))
    batch = with_lengths({"encoder_input_tokens": tokens}, 7)
    check(tiny_model(kind), batch, 7, ["greedy", "t5"], eos_id=-1)


@pytest.mark.slower
@pytest.mark.slow_on_jax
@pytest.mark.parametrize("family", ["t5", "remixer", "gmlp", "switch"])
def test_of_language_models(family, short_caches):
    batch = with_lengths(prompts(8, 6, 3, 8, 5, 7, 2, 8), 6)
    check(make(family), batch, 6, ["limits", "samples"], eos_id=-1)


def test_a_search_is_compiled_again_when_waiting_has_cost_as_much():
    calls = []

    def compiled(function):
        return function

    def answers(batch):
        calls.append(batch.get(search.HALVINGS, 0))
        return Decoded(batch["tokens"], batch["tokens"][:, 0])

    call = compile_search(compiled, answers, lambda: WORTH // 10)
    tokens = np.array([[5, 4, 1], [4, 1, 0], [1, 0, 0], [1, 0, 0]])
    assert steps_waited(tokens) == 5
    for rows in (tokens, tokens[:1], tokens[1:], tokens, tokens, tokens[:1]):
        call({"tokens": rows})
    assert calls == [0, 0, 0, 0, TIMES, 0]
    same = np.ones([4, 3])
    assert steps_waited(same) == steps_waited(same[:0]) == steps_waited(same[:1]) == 0


def test_a_server_compiles_a_search_once():
    compiled = []

    def compile(function):
        compiled.append(function)
        return function

    call = compile_search(compile, lambda batch: batch, lambda: WORTH, again=False)
    for _ in range(3):
        call({"x": np.zeros([4, 2])})
    assert len(compiled) == 1
