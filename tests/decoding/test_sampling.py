"""Samples against the distribution that they are drawn from."""

import collections
import functools
import itertools

import numpy as np
import pytest

from remixer_tf.decoding import Sampling, greedy_decode, sample
from remixer_tf.decoding.row_random import row_uniforms, threefry
from remixer_tf.decoding.row_settings import DTYPES
from tests.decoding.recurrent import EOS, VOCAB_SIZE, Recurrent, inputs
from tests.decoding.scored import score_answers
from tests.decoding.test_beam_search import run, tiny


def as_sampled(log_probs, temperature, top_k, top_p):
    """The distribution that is left, by its definition: float64 `[VOCAB_SIZE]`."""
    probs = np.exp(log_probs / temperature)
    order = np.argsort(-probs)
    probs[order[top_k:]] = 0
    probs /= probs.sum()
    mass = np.cumsum(probs[order])
    probs[order[1:][mass[:-1] >= top_p]] = 0
    return probs / probs.sum()


def chi_square_excess(counts, probs):
    """The statistic over what it is expected to be, in its standard deviations."""
    expected = probs * counts.sum()
    assert not counts[expected == 0].any()
    rare = expected < 5  # counted together
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], max(expected[rare].sum(), 5))
    freedom = len(counts) - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    return (statistic - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    ("settings", "as_inputs"),
    [
        ({"temperature": 2.0}, False),
        ({"temperature": 3.0, "top_k": 4, "top_p": 0.9}, True),
        *(
            pytest.param(settings, False, marks=pytest.mark.slow)
            for settings in (
                {},
                {"temperature": 3.0, "top_p": 0.7},
                {"top_k": 3},
                {"temperature": 3.0, "top_k": 4, "top_p": 0.9},
            )
        ),
    ],
)
def test_samples_are_of_the_distribution(settings, as_inputs):
    """Pairs of tokens, so that the second depends on the first; after prompts."""
    model, batch, number = Recurrent(reads_prompt=True), inputs(rows=2), 4000
    sampling = Sampling(**({} if as_inputs else settings))
    if as_inputs:
        for name, value in settings.items():
            batch[name] = np.full(2, value, DTYPES[name])
    decoded = run(sample, model, batch, 2, num_samples=number, sampling=sampling)
    settings = {"temperature": 1.0, "top_k": VOCAB_SIZE, "top_p": 1.0, **settings}
    for row, texts in zip(
        batch["encoder_input_tokens"], np.array(decoded.answers.tokens), strict=True
    ):
        first = as_sampled(model.log_probs(row, []), **settings)
        probs = {(EOS, 0): first[EOS]}
        for one in set(range(VOCAB_SIZE)) - {EOS}:
            second = as_sampled(model.log_probs(row, [one]), **settings)
            probs |= {(one, two): first[one] * p for two, p in enumerate(second)}
        counts = collections.Counter(map(tuple, texts.tolist()))
        assert set(counts) <= set(probs)
        counts = np.array([counts[pair] for pair in probs])
        assert chi_square_excess(counts, np.array(list(probs.values()))) < 5


@pytest.mark.slow_on_jax
def test_a_row_has_its_samples_whatever_the_batch():
    model, batch = Recurrent(), inputs()
    tokens = batch["encoder_input_tokens"]
    draw_them = functools.partial(run, sample, model, max_length=6, num_samples=3)
    expected = np.array(draw_them(batch).answers.tokens)
    other = np.pad(tokens[[3, 0, 3]], [(0, 0), (0, 2)])  # padded, doubled, moved
    found = draw_them({"encoder_input_tokens": other}).answers.tokens
    np.testing.assert_array_equal(found, expected[[3, 0, 3]])
    assert len({tuple(text) for row in expected for text in row.tolist()}) > 8
    assert (np.array(draw_them(batch, seed=1).answers.tokens) != expected).any()


@pytest.mark.parametrize("temperature", [0, 1e-40, 1e-12])
def test_without_chance_it_is_greedy(temperature):
    model, batch = Recurrent(reads_prompt=True), inputs()
    expected = run(greedy_decode, model, batch, 6)
    found = run(sample, model, batch, 6, sampling=Sampling(temperature))
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    assert found.answers == ()


@pytest.mark.slow_on_jax
def test_scores_are_those_of_the_answers():
    model = tiny("gmlp_lm")
    batch = {"encoder_input_tokens": np.array([[2, 3, 3], [3, 2, 0]], "int32")}
    options = {"num_samples": 4, "sampling": Sampling(temperature=2.0)}
    _, _, answers = run(sample, model, batch, 5, **options)
    expected = score_answers(model, batch, np.array(answers.tokens))
    np.testing.assert_allclose(answers.scores, expected, atol=1e-4)


def test_what_has_no_probability_is_never_drawn():
    """Not even by a number next to 0 or 1, whatever the sums round to."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(200, 2, 50)).astype("float32")
    logits[:, :, rng.integers(0, 50, 25)] = -np.inf
    logits[:, :, [0, -1]] = -np.inf
    uniform = np.broadcast_to([[0.0], [1 - 2**-24]], (200, 2, 1)).astype("float32")
    for top_k, top_p in itertools.product((None, 30), (1.0, 0.999)):
        tokens = np.array(Sampling(1.0, top_k, top_p).draw(logits, uniform))
        chosen = np.take_along_axis(logits, tokens[..., None], axis=-1)
        assert np.isfinite(chosen).all()


def test_threefry():
    """The known answers that its authors give (Random123, kat_vectors)."""
    for key, counter, expected in (
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        (
            (0x13198A2E, 0x03707344),
            (0x243F6A88, 0x85A308D3),
            (0xC4923A9C, 0x483DF7A0),
        ),
    ):
        words = threefry(*np.array([key, counter], "uint32")[..., None])
        assert np.array(words)[:, 0].tolist() == list(expected)


def test_uniforms_of_rows_are_independent():
    tokens = np.array([[2, 3], [3, 2], [2, 0]], "int32")
    numbers = np.array(row_uniforms(tokens, 0, (20, 50))).reshape(3, 1000)
    assert numbers.min() >= 0 and numbers.max() < 1
    assert np.abs(numbers.mean(axis=1) - 0.5).max() < 0.05
    assert np.abs(np.corrcoef(numbers) - np.eye(3)).max() < 0.15
    for seed in (1, -1, 2**40):
        other = np.array(row_uniforms(tokens, seed, (20, 50))).reshape(3, 1000)
        assert abs(np.corrcoef(numbers[0], other[0])[0, 1]) < 0.15


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"temperature": -1}, "temperature=-1"),
        ({"top_k": 0}, "top_k=0"),
        ({"top_p": 0}, "top_p=0"),
    ],
)
def test_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)
    with pytest.raises(ValueError, match="num_samples=0"):
        sample(Recurrent(), inputs(), 4, num_samples=0)
