"""Greedy decoding with a cache against the full forward pass."""

import functools

import keras
import numpy as np
import pytest

from remixer_tf.decoding import greedy_decode
from remixer_tf.errors import UserError
from tests.compiled import compiled, in_graph, slow_on_jax
from tests.models.tiny import EACH_CACHE, SOME_KINDS, tiny_batch, tiny_model

whole_pass = functools.cache(in_graph)  # of a model


def decode_without_cache(model, batch, max_length, eos_id):
    """Runs the whole model once for each token."""
    call = whole_pass(model)
    rows = len(batch["encoder_input_tokens"])
    tokens = np.zeros((rows, max_length), "int32")
    scores = np.zeros(rows)
    running = np.ones(rows, bool)
    for t in range(max_length):
        inputs = np.pad(tokens, [(0, 0), (1, 0)])[:, :-1]
        logits = np.array(call({**batch, "decoder_input_tokens": inputs}))[:, t]
        best = logits.argmax(-1)
        shifted = logits - logits.max(-1, keepdims=True)
        log_prob = -np.log(np.exp(shifted).sum(-1))
        tokens[:, t] = np.where(running, best, 0)
        scores += np.where(running, log_prob, 0)
        running &= tokens[:, t] != eos_id
    return tokens, scores


def greedy(model, batch, max_length, eos_id=1):
    decode = functools.partial(
        greedy_decode, model, max_length=max_length, eos_id=eos_id
    )
    return in_graph(decode, model)(batch)


@pytest.mark.parametrize("kind", EACH_CACHE)
def test_cached_equals_uncached(kind, monkeypatch):
    """With a cache that grows: it holds 2 tokens, then 8, then 11."""
    model = tiny_model(kind)
    batch = tiny_batch(batch_size=6)
    expected, scores = decode_without_cache(model, batch, 11, eos_id=1)
    monkeypatch.setattr("remixer_tf.decoding.search.FIRST_CACHE_LENGTH", 2)
    decoded = greedy(model, batch, 11)
    np.testing.assert_array_equal(np.array(decoded.tokens), expected)
    np.testing.assert_allclose(np.array(decoded.scores), scores, atol=1e-4)


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("kind", slow_on_jax(["t5_1_1", "remixer"], but=["remixer"]))
def test_a_row_ends_at_its_own_eos(kind):
    model = tiny_model(kind)
    batch = tiny_batch(batch_size=6)
    never = -1
    endless, _ = decode_without_cache(model, batch, 9, never)
    eos_id = int(endless[0, 3])  # a token that the untrained model does say
    expected, scores = decode_without_cache(model, batch, 9, eos_id)
    end = list(expected[0]).index(eos_id)
    assert end <= 3 and (expected[0, end + 1 :] == 0).all()
    decoded = greedy(model, batch, 9, eos_id)
    np.testing.assert_array_equal(np.array(decoded.tokens), expected)
    np.testing.assert_allclose(np.array(decoded.scores), scores, atol=1e-4)


@pytest.mark.slower
@pytest.mark.slower
@pytest.mark.parametrize("kind", SOME_KINDS)
def test_mixed_bfloat16(kind):
    """The score is that of the tokens in the full pass, within bfloat16's rounding."""
    model = tiny_model(kind, dtype="mixed_bfloat16")
    batch = tiny_batch()
    decoded = greedy(model, batch, 6, -1)
    assert keras.backend.standardize_dtype(decoded.scores.dtype) == "float32"
    tokens = np.array(decoded.tokens)
    inputs = np.pad(tokens, [(0, 0), (1, 0)])[:, :-1]
    logits = np.array(compiled(model)({**batch, "decoder_input_tokens": inputs}))
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected = np.take_along_axis(log_probs, tokens[..., None], -1).sum((1, 2))
    np.testing.assert_allclose(np.array(decoded.scores), expected, atol=0.2)


@pytest.mark.slow
@pytest.mark.slow_on_jax
def test_padding_of_the_input_does_not_matter():
    model = tiny_model("remixer")
    inputs = tiny_batch()["encoder_input_tokens"]
    longer = np.pad(inputs, [(0, 0), (0, 5)])
    short = greedy(model, {"encoder_input_tokens": inputs}, 8)
    long = greedy(model, {"encoder_input_tokens": longer}, 8)
    np.testing.assert_array_equal(np.array(short.tokens), np.array(long.tokens))
    np.testing.assert_allclose(np.array(short.scores), np.array(long.scores), atol=1e-4)


@pytest.mark.slow_on_jax
def test_longer_than_the_mixing_matrix_is_an_error():
    model = tiny_model("remixer", max_length=12)
    with pytest.raises(ValueError, match="20 tokens .* max_length=12"):
        greedy_decode(model, tiny_batch(), 20)


@pytest.mark.parametrize(
    ("name", "value", "options", "message"),
    [
        ("encoder_input_tokens", 40, {}, "token id 40, but the model's vocab_size is"),
        ("encoder_input_tokens", -1, {}, "holds the token id -1. Ids start at 0"),
        ("type", 0, {"eos_id": 40}, "eos_id must be one of the model's 40 ids, or -1"),
    ],
)
def test_ids_that_the_model_lacks(name, value, options, message):
    """An engine reads another row, or NaN, or names neither batch nor model."""
    model = tiny_model("t5_1_1")
    batch = {**tiny_batch(), name: np.full((3, 3), value, "int32")}
    with pytest.raises(UserError, match=message):
        greedy_decode(model, batch, 4, **options)
    if value:
        with pytest.raises(UserError, match=message):
            model(batch)
        with pytest.raises(UserError, match=message):
            model.fit(batch)
