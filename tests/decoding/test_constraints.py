"""Answers of a minimum length, and from a given set, in every search."""

import functools

import numpy as np
import pytest

from remixer_tf.decoding import (
    AnswerLimits,
    HuggingFaceRules,
    Sampling,
    T5Rules,
    beam_search,
    greedy_decode,
    sample,
)
from remixer_tf.errors import UserError
from tests.compiled import slow_on_jax
from tests.decoding.recurrent import EOS, Recurrent, inputs
from tests.decoding.test_beam_search import check, cut_at_eos, run, search
from tests.models.tiny import tiny_batch, tiny_model

# One begins another, one is empty, and one is there twice.
ALLOWED = [[2], [2, 3], [2, 3, 4, 5], [5, 2], [], [4, 4, 4], [5, 2]]
SEARCHES = {
    "greedy": greedy_decode,
    "t5": functools.partial(beam_search, rules=T5Rules(), beams=2),
    "huggingface": functools.partial(beam_search, rules=HuggingFaceRules(), beams=2),
    "sample": functools.partial(sample, sampling=Sampling(3.0, top_k=5, top_p=0.9)),
}


@pytest.mark.parametrize("name", slow_on_jax(SEARCHES, but=["t5", "sample"]))
def test_answers_are_of_the_set(name):
    model, batch = Recurrent(reads_prompt=True), inputs()
    decoded = run(SEARCHES[name], model, batch, 6, limits=AnswerLimits(0, ALLOWED))
    assert decoded.answers == ()
    texts = [cut_at_eos(row.tolist()) for row in np.array(decoded.tokens)]
    assert all(text[-1] == EOS and text[:-1] in ALLOWED for text in texts)
    assert len(set(map(tuple, texts))) > 1
    for row, text, score in zip(
        batch["encoder_input_tokens"], texts, decoded.scores, strict=True
    ):  # of the model, not of what the set leaves
        np.testing.assert_allclose(score, model.log_prob(row, text), atol=1e-4)


@pytest.mark.parametrize("preset", slow_on_jax(["t5", "huggingface"], but=["t5"]))
def test_with_enough_beams_the_whole_set_is_ranked(preset):
    """There are more beams than answers; those that are none are not given."""
    rules = T5Rules(0.0) if preset == "t5" else HuggingFaceRules(0.0, "never")
    model, batch = Recurrent(), inputs(rows=2)
    limits = AnswerLimits(allowed=ALLOWED)
    found = search(model, batch, 6, rules=rules, beams=9, n_best=9, limits=limits)
    for row, answers in zip(batch["encoder_input_tokens"], found, strict=True):
        texts = [[*text, EOS] for text in ALLOWED[:-1]]
        expected = sorted(((model.log_prob(row, x), x) for x in texts), reverse=True)
        check(answers, expected[: len(answers)])
        assert len(answers) == len(texts) or preset == "t5"


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("name", slow_on_jax(["greedy", "t5"], but=["t5"]))
def test_minimum_length(name):
    model, batch = Recurrent(reads_prompt=True), inputs()
    free, late = (
        np.array(run(SEARCHES[name], model, batch, 6, limits=limits).tokens)
        for limits in (None, AnswerLimits(min_length=2))
    )
    assert (free[:, :2] == EOS).any()
    assert not (late[:, :2] == EOS).any() and (late[:, 2:] == EOS).any()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"min_length": 6}, "min_length=6, max_length=6"),
        ({"allowed": []}, "0 answers"),
        ({"allowed": [[2] * 6]}, "0 to 5 tokens beside EOS. .* of 6 to 6 tokens"),
        ({"allowed": [[2], [2, 3]], "min_length": 2}, "2 to 5 .* of 1 to 2 tokens"),
        ({"allowed": [[2, EOS]]}, r"without EOS \(1\). Received: \[1, 2\]"),
        ({"allowed": [[2, 0]]}, r"above 0 .* Received: \[0, 2\]"),
        ({"allowed": [[2, 9]]}, "have the id 9, and the model 6 ids"),
    ],
)
def test_errors(options, message):
    with pytest.raises(ValueError, match=message):
        greedy_decode(Recurrent(), inputs(), 6, limits=AnswerLimits(**options))


WRONG = [
    ({"max_length": "x"}, "max_length must be an integer"),
    ({"max_length": -1}, "max_length must be an integer"),
    ({"max_length": 1.5}, "max_length must be an integer"),
    ({"eos_id": None}, "eos_id must be an integer"),
    ({"eos_id": "</s>"}, "eos_id must be an integer"),
    ({"limits": 5}, "limits must be AnswerLimits"),
    ({"limits": {"min_length": 1}}, "limits must be AnswerLimits"),
    ({"batch": None}, "a dictionary with encoder_input_tokens"),
    ({"batch": {}}, "a dictionary with encoder_input_tokens"),
    ({"batch": {"encoder_input_tokens": [[5]]}}, "must be .batch, length."),
    ({"batch": {"encoder_input_tokens": np.ones(2, int)}}, "must be .batch, length."),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=range(len(WRONG)))
def test_arguments_of_another_kind(arguments, message):
    model = tiny_model("t5_1_1")
    arguments = {"batch": tiny_batch(), "max_length": 3, **arguments}
    with pytest.raises(UserError, match=message):
        greedy_decode(model, **arguments)
