"""Settings that are inputs: each row has the answers of a search of its constants."""

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
from remixer_tf.decoding.constraints import TableRoom, allowed_table
from remixer_tf.decoding.row_settings import DTYPES, replaced, with_rows
from remixer_tf.loaded.kept import Options
from remixer_tf.loaded.searches import check_answers
from tests.decoding.recurrent import EOS, Recurrent, inputs
from tests.decoding.test_beam_search import run

LIMITS = {
    "max_length": [6, 3, 1, 5],
    "min_length": [0, 2, 0, 4],
    "repetition_penalty": [1.0, 0.5, 3.0, 1.5],
}
SAMPLING = {
    "temperature": [2.0, 0.0, 1e-40, 3.0],
    "top_k": [6, 2, 4, 3],
    "top_p": [1.0, 0.9, 0.6, 0.8],
}


def with_inputs(**settings):
    arrays = {k: np.array(x, DTYPES[k]) for k, x in settings.items()}
    return inputs(rows=4) | arrays


def check(found, search, constants):
    """Compares each row with a search of one row that has these constants."""
    tokens = inputs(rows=4)["encoder_input_tokens"]
    for row, (length, options) in enumerate(constants):
        one = {"encoder_input_tokens": tokens[row : row + 1]}
        expected = search(Recurrent(), one, length, **options)
        texts, scores = found.answers.tokens[row], found.answers.scores[row]
        np.testing.assert_array_equal(
            np.array(texts)[:, :length], np.array(expected.answers.tokens)[0]
        )
        assert not np.array(texts)[:, length:].any()
        np.testing.assert_allclose(scores, expected.answers.scores[0], rtol=1e-5)


def rows_of(settings):
    values = zip(*settings.values(), strict=True)
    return [dict(zip(settings, x, strict=True)) for x in values]


def limits_of(row):
    names = ("min_length", "repetition_penalty")
    return AnswerLimits(**{name: row[name] for name in names})


@pytest.mark.slow_on_jax
def test_of_draws():
    batch = with_inputs(**LIMITS, **SAMPLING)
    options = {"num_samples": 3, "seed": 5}
    found = run(sample, Recurrent(), batch, 6, sampling=Sampling(top_k=6), **options)
    constants = []
    for row in rows_of(LIMITS | SAMPLING):
        sampling = Sampling(**{name: row[name] for name in SAMPLING})
        given = {"sampling": sampling, "limits": limits_of(row), **options}
        constants.append((row["max_length"], given))
    check(found, sample, constants)


@pytest.mark.slow_on_jax
@pytest.mark.parametrize(
    ("rules", "name"),
    [
        (T5Rules, "alpha"),
        pytest.param(HuggingFaceRules, "length_penalty", marks=pytest.mark.slow),
    ],
)
def test_of_beams(rules, name):
    powers = [0.0, 0.6, 1.0, 4.0]
    batch = with_inputs(**LIMITS, **{name: powers})
    options = {"beams": 3, "n_best": 3}
    found = run(beam_search, Recurrent(), batch, 6, rules=rules(), **options)
    constants = [
        (row["max_length"], {"rules": rules(power), "limits": limits_of(row)} | options)
        for row, power in zip(rows_of(LIMITS), powers, strict=True)
    ]
    check(found, beam_search, constants)


LISTS = [[[2], [2, 3], [4, 4, 4]], [[5, 2]], [[3], [4], [5], [2, 2]], [[], [5, 5, 5]]]
SEARCHES = {
    "greedy": greedy_decode,
    "beams": functools.partial(beam_search, rules=T5Rules(), beams=2),
    "draws": functools.partial(sample, sampling=Sampling(3.0), seed=5),
}


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("halvings", [0, 1])
def test_of_lists_of_allowed_answers(name, halvings):
    room = TableRoom(16, 4)
    tables = [allowed_table(answers) for answers in LISTS]
    tables = [np.pad(x, [(0, 16 - len(x)), (0, 0)]) for x in tables]
    batch = with_inputs(allowed=tables) | ({"halvings": 1} if halvings else {})
    found = run(SEARCHES[name], Recurrent(), batch, 5, limits=AnswerLimits(0, room))
    tokens = batch["encoder_input_tokens"]
    for row, answers in enumerate(LISTS):
        one = {"encoder_input_tokens": tokens[row : row + 1]}
        limits = AnswerLimits(allowed=answers)
        alone = SEARCHES[name](Recurrent(), one, 5, limits=limits)
        text = np.array(found.tokens)[row]
        np.testing.assert_array_equal(text, np.array(alone.tokens)[0])
        np.testing.assert_allclose(found.scores[row], alone.scores[0], rtol=1e-5)
        assert text[text > EOS].tolist() in answers


class Halved(T5Rules):
    """Rules of a user's, with a constructor of their own."""

    def __init__(self, factor):
        super().__init__(alpha=0.5)
        self.factor = factor


class Short(AnswerLimits):
    def __init__(self, most):
        super().__init__(min_length=1)
        self.most = most


def test_a_users_subclass_keeps_what_it_holds():
    batch = {"alpha": np.array([0.25, 1.0], np.float32)}
    found = with_rows(Halved(3), batch)
    assert type(found) is Halved and found.factor == 3
    np.testing.assert_array_equal(found.alpha, batch["alpha"])
    assert replaced(Halved(3), alpha=1.0).factor == 3
    with pytest.raises(ValueError, match="alpha must be a number"):
        replaced(T5Rules(), alpha="x")


def test_rules_that_differ_in_what_a_subclass_holds_have_graphs_of_their_own():
    """The == of a dataclass looks at its fields alone."""
    assert Options(rules=Halved(3)) == Options(rules=Halved(3))
    table = Halved(np.ones(2))
    assert Options(rules=table) in {Options(rules=table): 1}
    assert Options(rules=Halved(np.ones(2))) not in {Options(rules=table): 1}
    assert Options(rules=T5Rules(0.5)) == Options(rules=T5Rules(0.5))
    kept = {Options(rules=Halved(3)): 1}
    assert Options(rules=Halved(4)) not in kept


def test_answers_are_checked_by_the_searchs_own_end():
    """A vocabulary of a user's may end texts by another id than 1."""
    check_answers({"eos_id": 2}, {"allowed": [[1, 5]]}, 4)
    with pytest.raises(ValueError, match="without EOS .2."):
        check_answers({"eos_id": 2}, {"allowed": [[2, 5]]}, 4)
    check_answers({"limits": Short(9)}, {"allowed": [[5]]}, 4)
