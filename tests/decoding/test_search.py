"""The frame carries other searches than greedy decoding: beams, and sampling."""

import functools

import numpy as np
import pytest

from remixer_tf.decoding import greedy_decode
from tests.compiled import compiled, slow_on_jax
from tests.decoding.searches import beam_search, sample
from tests.layers.harness import randomize
from tests.models.tiny import tiny_batch, tiny_decoder, tiny_model

LENGTH = 6


@pytest.fixture(
    params=slow_on_jax(["encoder_decoder", "decoder_only"], but=["encoder_decoder"]),
    scope="module",
)
def model(request):
    if request.param == "decoder_only":
        model = tiny_decoder("amlp")
        randomize(model)
    else:
        model = tiny_model("remixer")
    return model


@functools.cache
def full_pass(model):
    return compiled(model)


def next_log_probs(model, batch, row, written):
    """Of the next token, float64 `[vocab_size]`, by a pass of the whole model."""
    inputs = np.array(batch["encoder_input_tokens"])[row : row + 1]
    prompt = [] if hasattr(model, "encoder") else inputs[inputs > 0].tolist()
    tokens = [0, *prompt, *written]
    # All of one length, which changes nothing before: JAX compiles once.
    padded = np.array([tokens + [0] * (16 - len(tokens))], "int32")
    logits = np.array(
        full_pass(model)(
            {"encoder_input_tokens": inputs, "decoder_input_tokens": padded}
        )
    )[0, len(tokens) - 1].astype("float64")
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def run(search, model, batch, **options):
    search = functools.partial(search, model, max_length=LENGTH, **options)
    return compiled(search, model)(batch)


def beams_without_cache(model, batch, row, beams, eos_id):
    alive = [(0.0, [])]
    for _ in range(LENGTH):
        candidates = []
        for score, written in alive:
            if eos_id in written:
                candidates.append((score, written))
                continue
            log_probs = next_log_probs(model, batch, row, written)
            candidates += [(score + x, [*written, t]) for t, x in enumerate(log_probs)]
        alive = sorted(candidates, key=lambda c: -c[0])[:beams]
    return alive


def test_beams_equal_a_search_without_a_cache(model, monkeypatch):
    monkeypatch.setattr("remixer_tf.decoding.search.FIRST_CACHE_LENGTH", 3)
    batch = {"encoder_input_tokens": tiny_batch()["encoder_input_tokens"][:, -6:]}
    greedy = np.array(run(greedy_decode, model, batch).tokens)
    eos_id = int(greedy[0, 2])  # so that hypotheses end at different lengths
    found, _ = run(beam_search, model, batch, beams=2, eos_id=eos_id)
    changed = 0
    for row in range(3):
        expected = beams_without_cache(model, batch, row, 2, eos_id)
        for beam, (score, written) in enumerate(expected):
            written = written + [0] * (LENGTH - len(written))
            assert np.array(found.tokens)[row, beam].tolist() == written
            np.testing.assert_allclose(found.scores[row, beam], score, atol=1e-4)
        changed += np.array(found.tokens)[row, 0].tolist() != greedy[row].tolist()
    assert changed  # beams were reordered


def test_one_beam_is_greedy(model):
    batch = tiny_batch()
    expected = run(greedy_decode, model, batch)
    found, _ = run(beam_search, model, batch, beams=1)
    np.testing.assert_array_equal(np.array(found.tokens)[:, 0], expected.tokens)
    np.testing.assert_allclose(np.array(found.scores)[:, 0], expected.scores, atol=1e-5)


def test_samples_are_of_the_distribution_and_of_their_seed(model):
    """A row's random numbers do not depend on its neighbours, or their prompts."""
    batch = {"encoder_input_tokens": tiny_batch()["encoder_input_tokens"]}
    seeds = np.array([11, 22, 33], "int32")
    found, _ = run(sample, model, batch, seeds=seeds, eos_id=-1)
    for row, state in enumerate(seeds.tolist()):
        written, total = [], 0.0
        for _ in range(LENGTH):
            log_probs = next_log_probs(model, batch, row, written)
            state = (75 * state + 74) % 65537
            written.append(int((np.exp(log_probs).cumsum() < state / 65537).sum()))
            total += log_probs[written[-1]]
        assert np.array(found.tokens)[row, 0].tolist() == written
        np.testing.assert_allclose(found.scores[row, 0], total, atol=1e-4)
    other, _ = run(sample, model, batch, seeds=seeds + 1, eos_id=-1)
    assert (np.array(other.tokens) != np.array(found.tokens)).any()
