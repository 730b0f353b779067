"""Answers that do not repeat themselves, by the rules of Hugging Face's `generate`."""

import functools

import keras
import numpy as np
import pytest

from remixer_tf.decoding import (
    AnswerLimits,
    HuggingFaceRules,
    beam_search,
    greedy_decode,
    sample,
)
from remixer_tf.decoding.repetition import Repetition, tokens_read
from tests.compiled import slow_on_jax
from tests.decoding.recurrent import EOS, VOCAB_SIZE, Recurrent, inputs
from tests.decoding.test_beam_search import cut_at_eos, run
from tests.models.tiny import tiny_model

BEAMS = functools.partial(beam_search, rules=HuggingFaceRules(), beams=3)


@pytest.mark.slow_on_jax
def test_numbers_of_the_rules():
    """Read so far: 0 2 3 2. The pair 2 3 is there; 3 2 follows only on 3."""
    read = np.array([[[0, 2, 3, 2, 5, 5]]], "int32")  # 5 comes later
    scores = np.array([[[1.0, -1.0, -2.0, 4.0, 3.0, 2.0]]], "float32")
    lower = Repetition(AnswerLimits(repetition_penalty=2.0)).penalize(
        scores, read, np.int32(3)
    )
    np.testing.assert_array_equal(lower, [[[0.5, -1.0, -4.0, 2.0, 3.0, 2.0]]])
    for size, banned in ((1, {0, 2, 3}), (2, {3}), (3, set())):
        repetition = Repetition(AnswerLimits(no_repeat_ngram_size=size))
        left = repetition.mask(scores, read, np.int32(3))
        assert set(np.flatnonzero(np.isinf(left))) == banned
    longer = Repetition(AnswerLimits(no_repeat_ngram_size=5))
    np.testing.assert_array_equal(longer.mask(scores, read, np.int32(3)), scores)


def test_a_prompt_is_read_without_its_padding():
    prompt = np.array([[7, 8, 0], [9, 0, 0]], "int32")
    answers = np.array([[[2, 3]], [[4, 5]]], "int32")
    read = np.array(tokens_read(prompt, np.array([2, 1], "int32"), answers))
    assert read[0, 0, :5].tolist() == [0, 7, 8, 2, 3]
    assert read[1, 0, :4].tolist() == [0, 9, 4, 5]


def expected_greedy(model, row, length, size, penalty):
    """Token after token, in NumPy, from the rules' definitions."""
    prompt = [int(x) for x in row if x > 0] if model.reads_prompt else []
    text = []
    while len(text) < length and EOS not in text:
        scores = model.logits(row, text)
        read = [0, *prompt, *text]
        for token in set(read):
            scores[token] *= penalty if scores[token] < 0 else 1 / penalty
        if size:
            grams = {tuple(read[i : i + size]) for i in range(len(read) - size + 1)}
            for token in range(VOCAB_SIZE):
                if tuple([*read, token][-size:]) in grams and len(read) >= size:
                    scores[token] = -np.inf
        text.append(int(scores.argmax()))
    return text


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("reads_prompt", slow_on_jax([True, False], but=[True]))
@pytest.mark.parametrize(
    "size, penalty", slow_on_jax([(2, 1.0), (0, 1.5), (3, 1.2)], but=[(3, 1.2)])
)
def test_greedy(reads_prompt, size, penalty):
    model, batch = Recurrent(reads_prompt), inputs()
    limits = AnswerLimits(no_repeat_ngram_size=size, repetition_penalty=penalty)
    found = run(greedy_decode, model, batch, 9, limits=limits)
    free = run(greedy_decode, model, batch, 9)
    texts = [cut_at_eos(row) for row in np.array(found.tokens).tolist()]
    rows = batch["encoder_input_tokens"]
    assert texts == [expected_greedy(model, row, 9, size, penalty) for row in rows]
    assert not np.array_equal(np.array(found.tokens), np.array(free.tokens))


@pytest.mark.parametrize("search", slow_on_jax([BEAMS, sample], but=[sample]))
def test_no_pair_twice_in_any_search(search):
    model, batch = Recurrent(), inputs()
    found, free = (
        np.array(run(search, model, batch, 9, limits=AnswerLimits(7, None, n))[0])
        for n in (2, 0)
    )

    def repeats(texts):
        pairs = [list(zip(t, t[1:], strict=False)) for t in map(cut_at_eos, texts)]
        return sum(len(p) - len(set(p)) for p in pairs)

    assert repeats(free.tolist()) > 0 == repeats(found.tolist())


@pytest.mark.slow_on_jax
def test_beams_rank_by_penalised_log_probabilities():
    """With as many beams as answers of 2 tokens, all are compared."""
    model, batch = Recurrent(), inputs(rows=3)
    rules = HuggingFaceRules(length_penalty=0.0, early_stopping="never")
    found = run(
        functools.partial(beam_search, rules=rules, beams=VOCAB_SIZE**2, n_best=4),
        model,
        batch,
        2,
        limits=AnswerLimits(repetition_penalty=3.0),
    )
    for row, texts, scores in zip(
        batch["encoder_input_tokens"], *map(np.array, found.answers), strict=True
    ):
        expected = {}
        for first in range(VOCAB_SIZE):
            start = _penalised(model, row, [])[first]
            if first == EOS:
                expected[first, 0] = start
                continue
            for second, value in enumerate(_penalised(model, row, [first])):
                expected[first, second] = start + value
        best = sorted(expected, key=expected.get, reverse=True)[:4]
        assert [tuple(text) for text in texts.tolist()] == best
        np.testing.assert_allclose(scores, [expected[t] for t in best], atol=1e-4)


def _penalised(model, row, text):
    log_probs = model.log_probs(row, text)
    for token in {0, *text}:
        log_probs[token] *= 3.0
    return log_probs


@pytest.mark.parametrize(
    "options, message",
    [
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size .*-1"),
        ({"repetition_penalty": 0.0}, "a number > 0. Received: .*=0.0"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        greedy_decode(Recurrent(), inputs(), 6, limits=AnswerLimits(**options))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 99])  # 99: longer than all rows.
def test_n_grams_in_a_graph_of_unknown_batch(size):
    model, limits = tiny_model("t5_1_1"), AnswerLimits(no_repeat_ngram_size=size)
    batch = {"encoder_input_tokens": np.ones([3, 4], "int32")}

    def search(tokens):
        found = greedy_decode(model, {"encoder_input_tokens": tokens}, 6, -1, limits)
        return found.tokens

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        spec = tf.TensorSpec([None, 4], tf.int32)
        search = tf.function(search, input_signature=[spec], autograph=False)
    tokens = np.array(search(batch["encoder_input_tokens"]))
    if size == 2:
        for row in tokens:
            pairs = [*zip(row, row[1:], strict=False)]
            assert len(pairs) == len(set(pairs))
