"""Scores of given targets, against NumPy, decoding, and rows by themselves."""

import functools

import numpy as np
import pytest

from remixer_tf.decoding import greedy_decode, score
from tests.compiled import compiled, slow_on_jax
from tests.layers.harness import randomize
from tests.models.tiny import tiny_batch, tiny_decoder, tiny_encoder, tiny_model

MODELS = slow_on_jax(["t5_1_1", "remixer", "lm"], but=["lm"])


def make_model(kind):
    model = tiny_decoder("gmlp") if kind == "lm" else tiny_model(kind)
    randomize(model)
    return model


def in_one_row(batch, length=None):
    """A batch as a language model reads it: inputs and targets on end."""
    rows = [
        (inputs[inputs > 0], targets[targets > 0])
        for inputs, targets in zip(
            batch["encoder_input_tokens"], batch["decoder_target_tokens"], strict=True
        )
    ]
    length = length or max(len(inputs) + len(targets) for inputs, targets in rows)
    tokens, weights = np.zeros((2, len(rows), length), "int32")
    for row, (inputs, targets) in enumerate(rows):
        end = len(inputs) + len(targets)
        tokens[row, :end] = [*inputs, *targets]
        weights[row, len(inputs) : end] = 1
    return {
        "decoder_input_tokens": np.pad(tokens, [(0, 0), (1, 0)])[:, :-1],
        "decoder_target_tokens": tokens,
        "decoder_loss_weights": weights,
    }


def scores_of(model, batch):
    return [
        np.array(x) for x in compiled(functools.partial(score, model), model)(batch)
    ]


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("kind", MODELS)
def test_sums_of_log_probabilities(kind):
    model, batch = make_model(kind), tiny_batch()
    if kind == "lm":
        batch = in_one_row(batch)
    targets, weights = batch["decoder_target_tokens"], batch["decoder_loss_weights"]
    logits = np.array(compiled(model)(batch)).astype("float64")
    weights[0, -4:] = 0
    top = logits.argmax(-1)
    targets[1] = np.where(weights[1], top[1], targets[1])  # inputs stay: so do logits
    logits -= logits.max(-1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = np.take_along_axis(log_probs, targets[..., None], -1)[..., 0] * weights
    sums, num_tokens, greedy, found = scores_of(model, batch)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(sums, expected.sum(-1), atol=1e-3)
    np.testing.assert_array_equal(num_tokens, weights.sum(-1))
    hits = ((top == targets) | (weights == 0)).all(-1)
    np.testing.assert_array_equal(greedy, hits)
    assert hits[1] and not hits.all()


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("kind", MODELS)
def test_greedy_answers_score_what_decoding_says(kind):
    model, batch = make_model(kind), tiny_batch()
    decode = functools.partial(greedy_decode, model, max_length=5, eos_id=-1)
    tokens, scores = map(np.array, compiled(decode, model)(batch)[:2])
    assert tokens.all()  # none is padding, which a batch could not tell
    batch = {
        "encoder_input_tokens": batch["encoder_input_tokens"],
        "decoder_input_tokens": np.pad(tokens, [(0, 0), (1, 0)])[:, :-1],
        "decoder_target_tokens": tokens,
        "decoder_loss_weights": np.ones_like(tokens),
    }
    scored = scores_of(model, in_one_row(batch) if kind == "lm" else batch)
    np.testing.assert_allclose(scored[0], scores, atol=1e-3)
    assert scored[2].all()


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("kind", MODELS)
def test_neither_padding_nor_neighbours_matter(kind):
    model, batch = make_model(kind), tiny_batch()
    if kind == "lm":
        batch, padded = in_one_row(batch), in_one_row(batch, 22)
    else:
        padded = {k: np.pad(x, [(0, 0), (0, 4)]) for k, x in batch.items()}
    sums, num_tokens, greedy, log_probs = scores_of(model, batch)
    for other in (padded, {k: x[1:2] for k, x in padded.items()}):
        others = scores_of(model, other)
        rows = slice(1, 2) if len(others[0]) == 1 else slice(None)
        length = log_probs.shape[1]
        np.testing.assert_allclose(others[0], sums[rows], atol=1e-3)
        np.testing.assert_array_equal(others[1], num_tokens[rows])
        np.testing.assert_array_equal(others[2], greedy[rows])
        np.testing.assert_allclose(others[3][:, :length], log_probs[rows], atol=1e-3)


def test_without_targets_nothing_is_unlikely():
    batch = in_one_row(tiny_batch())
    batch["decoder_loss_weights"] = np.zeros_like(batch["decoder_loss_weights"])
    sums, num_tokens, greedy, _ = scores_of(make_model("lm"), batch)
    assert not np.any(sums) and not np.any(num_tokens) and np.all(greedy)


def test_what_cannot_be_scored():
    with pytest.raises(ValueError, match="LanguageModelFeatureConverter"):
        score(tiny_decoder("gmlp"), tiny_batch())
    with pytest.raises(ValueError, match="scoring.*Received: EncoderOnly"):
        score(tiny_encoder("gmlp"), tiny_batch())
