"""Texts of a long list take the places of others; each has the answer it has alone."""

import functools

import numpy as np
import pytest
import tensorflow as tf

import remixer_tf as rt
from remixer_tf.decoding import greedy_decode
from remixer_tf.decoding.search import Decoded
from remixer_tf.serving import text_to_text
from remixer_tf.serving.places import Places

pytestmark = pytest.mark.slow
TEXTS = ["A cat", "the", "", "x" * 20, "a b", "dogs", "caf\u00e9", "c", "A cat", "zz"]
ALLOWED = {"allowed": ["a", "bcdefg", "hijk"], "seed": 3}  # of several lengths
OPTIONS = {
    "greedy": {"max_length": 5},
    "limits": {"repetition_penalty": 1.4, "no_repeat_ngram_size": 2, "max_length": 9},
    "drawn": {"temperature": 5.0, **ALLOWED},
    "several": {"temperature": 9.0, "num_samples": 3, **ALLOWED},
}


@pytest.fixture
def arranged(monkeypatch):
    """The numbers of texts that were being written and that began, for each turn."""
    turns, arrange = [], Places.arrange

    def noted(places, writing, new):
        turns.append((len(writing), len(new)))
        return arrange(places, writing, new)

    monkeypatch.setattr(Places, "arrange", noted)
    return turns


@pytest.fixture(scope="module")
def runs(bytes_run, lm_run):
    return {"encoder-decoder": rt.load(bytes_run), "language model": rt.load(lm_run)}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", ["encoder-decoder", "language model"])
def test_answers_are_those_of_single_texts(runs, kind, options, arranged):
    run, options = runs[kind], OPTIONS[options]
    found = run.generate(TEXTS, batch_size=3, scores=True, **options)
    assert arranged, "in batches"
    if "allowed" in options:
        assert any(writing and new for writing, new in arranged)
    assert max(map(sum, arranged)) == 3
    for text, answers in zip(TEXTS, found, strict=True):
        alone = run.generate(text, scores=True, **options)
        several = isinstance(alone, list)
        pairs = zip(*((x if several else [x]) for x in (answers, alone)), strict=True)
        for (answer, score), (expected, expected_score) in pairs:
            assert answer == expected
            np.testing.assert_allclose(score, expected_score, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("options", [{"beams": 2}, {"beams": 3, "n_best": 2}])
def test_beams_keep_in_step(runs, options, arranged):
    run = runs["encoder-decoder"]
    found = run.generate(TEXTS, batch_size=3, **options)
    assert not any(writing for writing, _ in arranged)
    assert found == [run.generate(text, **options) for text in TEXTS]


def longest_of_two(model, batch, max_length):
    """A search of a user's own, which decodes twice."""
    short = greedy_decode(model, batch, 2)
    long = greedy_decode(model, batch, max_length)
    tokens = tf.pad(short.tokens, [[0, 0], [0, max_length - 2]])
    better = long.scores > 2 * short.scores
    return Decoded(
        tf.where(better[:, None], long.tokens, tokens),
        tf.where(better, long.scores, short.scores),
    )


def question_without_its_end(model, batch, max_length):
    """One that changes the batch: each call of it cuts a token."""
    tokens = batch["encoder_input_tokens"]
    last = tf.reduce_sum(tf.cast(tokens > 0, tf.int32), axis=1)[:, None] - 1
    tokens = tf.where(tf.range(tokens.shape[1]) < last, tokens, 0)
    return greedy_decode(model, batch | {"encoder_input_tokens": tokens}, max_length)


@pytest.mark.parametrize("search", [longest_of_two, question_without_its_end])
def test_searches_of_ones_own_get_whole_batches(runs, search, arranged):
    run = runs["encoder-decoder"].run
    model, _ = text_to_text.text_to_text(
        run, None, decode_fn=functools.partial(search), max_length=6
    )
    texts = [text.encode() for text in TEXTS]
    found = model.answer_all(texts, 3)
    assert not any(writing for writing, _ in arranged)
    for i, text in enumerate(texts):
        alone = model(tf.constant([text]))
        assert found["outputs"][i] == alone["outputs"][0]
        np.testing.assert_allclose(found["scores"][i], alone["scores"][0], rtol=1e-4)


def test_turns_that_xla_cannot_compile(runs, monkeypatch, arranged):
    run = runs["encoder-decoder"]
    expected = run.generate(TEXTS[:3])

    def fail(*_):
        raise tf.errors.InvalidArgumentError(None, None, "no such operation")

    monkeypatch.setattr(text_to_text.ContinuousSearch, "compile", fail)
    assert run.generate(TEXTS, batch_size=3)[:3] == expected
    assert arranged


def test_ten_texts_make_few_graphs(runs):
    """Lists of other lengths, and other numbers in options, trace nothing anew."""
    run = runs["encoder-decoder"]
    run.generate(TEXTS, batch_size=3, temperature=2.0, seed=1)
    answerer, _ = run.answerer(temperature=2.0, seed=1)
    shapes = frozenset({("temperature", ()), ("seeds", (2,))})
    graphs = answerer._search_of(shapes)._graphs
    before = len(graphs)
    run.generate(TEXTS * 2, batch_size=3, temperature=3.0, seed=2)
    assert len(graphs) == before > 0
