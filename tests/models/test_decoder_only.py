"""Language models: logits, causality, packing, decoding with a prompt."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.decoding import greedy_decode
from tests.compiled import compiled, in_graph
from tests.layers.harness import randomize
from tests.models.tiny import (
    EACH_DECODER,
    MIXTURES,
    SOME_DECODERS,
    STACKS,
    VOCAB_SIZE,
    tiny_decoder,
)

whole_pass = functools.cache(in_graph)  # of a model


def randomized(kind, **kwargs):
    model = tiny_decoder(kind, **kwargs)
    randomize(model)
    return model


def tokens(rows, length, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(2, VOCAB_SIZE, (rows, length)).astype("int32")


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("tied", [True, False])
def test_logits(tied, dtype):
    model = randomized("amlp", tied_logits=tied, dtype=dtype)
    logits = compiled(model)({"decoder_input_tokens": tokens(3, 7)})
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert tuple(logits.shape) == (3, 7, VOCAB_SIZE)
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype("float32")
    table = ops.convert_to_numpy(model.token_embedding.embeddings).T
    matrix = table if tied else ops.convert_to_numpy(model.logits.kernel)
    np.testing.assert_allclose(np.array(model._compute_logits(x)), x @ matrix, 1e-4)


@pytest.mark.parametrize("kind", EACH_DECODER)
def test_a_token_changes_no_logits_before_it(kind):
    inputs = tokens(2, 8)
    rows = np.stack([inputs] * 9)
    for t in range(8):
        rows[t, :, t] = inputs[:, t] % (VOCAB_SIZE - 2) + 1
    model = compiled(randomized(kind))
    logits = np.array(model({"decoder_input_tokens": rows.reshape(18, 8)}))
    *others, logits = logits.reshape(9, 2, 8, VOCAB_SIZE)
    for t, other in enumerate(others):
        np.testing.assert_allclose(other[:, :t], logits[:, :t], atol=1e-5)
        assert np.abs(other[:, t] - logits[:, t]).max() > 1e-4


@pytest.mark.parametrize("kind", SOME_DECODERS)
def test_packed_examples_give_what_they_give_alone(kind):
    model = compiled(randomized(kind))
    a, b = tokens(2, 5, seed=1), tokens(2, 6, seed=2)
    packed = {
        "decoder_input_tokens": np.pad(np.concatenate([a, b], 1), [(0, 0), (0, 1)]),
        "decoder_segment_ids": np.array([[1] * 5 + [2] * 6 + [0]] * 2, "int32"),
        "decoder_positions": np.array([[*range(5), *range(6), 0]] * 2, "int32"),
    }
    logits = np.array(model(packed))
    for alone, part in ((a, logits[:, :5]), (b, logits[:, 5:11])):
        expected = np.array(model({"decoder_input_tokens": alone}))
        np.testing.assert_allclose(part, expected, atol=1e-4)


def continue_without_cache(model, prompt, max_length, eos_id):
    """Runs the whole model once for each token of each row."""
    call = whole_pass(model)
    written, score = [], 0.0
    while len(written) < max_length and eos_id not in written:
        tokens = [0, *prompt, *written]
        # All of one length, which changes nothing before: JAX compiles once.
        inputs = np.array([tokens + [0] * (16 - len(tokens))], "int32")
        logits = np.array(call({"decoder_input_tokens": inputs}))[0, len(tokens) - 1]
        written.append(int(logits.argmax()))
        score += logits.max() - np.log(np.exp(logits).sum())
    return written + [0] * (max_length - len(written)), score


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(k, marks=[pytest.mark.slower] * (k != "bert"))
        for k in [*STACKS, *MIXTURES]
    ],
)
def test_greedy_decoding_goes_on_from_each_rows_own_prompt(kind, monkeypatch):
    first = "remixer_tf.decoding.search.FIRST_CACHE_LENGTH"
    monkeypatch.setattr(first, 2)  # then 8, then 14
    model = randomized(kind)
    prompts = tokens(5, 6)
    for row, length in enumerate([6, 5, 3, 1, 0]):
        prompts[row, length:] = 0
    prompts[1, 2] = eos_id = 5  # an EOS inside a prompt ends nothing
    decode = functools.partial(greedy_decode, model, max_length=8, eos_id=eos_id)
    decoded = in_graph(decode, model)({"encoder_input_tokens": prompts})
    for row, prompt in enumerate(prompts):
        prompt = prompt[prompt > 0].tolist()
        expected, score = continue_without_cache(model, prompt, 8, eos_id)
        assert np.array(decoded.tokens)[row].tolist() == expected
        np.testing.assert_allclose(np.array(decoded.scores)[row], score, atol=1e-4)


@pytest.mark.slow
def test_a_row_ends_at_its_own_eos():
    model = randomized("gmlp")
    prompts = tokens(4, 3)
    decode = functools.partial(greedy_decode, model, max_length=6)
    batch = {"encoder_input_tokens": prompts}
    endless = np.array(compiled(functools.partial(decode, eos_id=-1), model)(batch)[0])
    eos_id = int(endless[0, 2])
    decoded = compiled(functools.partial(decode, eos_id=eos_id), model)(batch)
    for row in range(4):
        expected, score = continue_without_cache(model, prompts[row], 6, eos_id)
        assert np.array(decoded.tokens)[row].tolist() == expected
        np.testing.assert_allclose(np.array(decoded.scores)[row], score, atol=1e-4)
    assert 0 in np.array(decoded.tokens)[0]


def test_inputs_that_would_not_be_read_are_refused():
    batch = {"decoder_input_tokens": tokens(2, 4), "encoder_input_tokens": tokens(2, 3)}
    with pytest.raises(ValueError, match="in one row.*LanguageModelFeatureConverter"):
        randomized("gmlp")(batch)
