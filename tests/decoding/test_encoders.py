"""Answers of models without a decoder."""

import functools

import numpy as np
import pytest

from remixer_tf.decoding import best_span, classify, greedy_decode
from remixer_tf.models import ClassificationHead, SpanHead
from tests.layers.harness import randomize
from tests.models.tiny import tiny_batch, tiny_encoder


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def test_classify():
    model = tiny_encoder("gmlp", functools.partial(ClassificationHead, 4))
    randomize(model)
    batch = tiny_batch(8)
    decoded = classify(model, batch, 1)
    logits = np.array(model(batch))[:, 0]
    np.testing.assert_array_equal(np.array(decoded.tokens)[:, 0], logits.argmax(-1))
    expected = log_softmax(logits).max(-1)
    np.testing.assert_allclose(np.array(decoded.scores), expected, atol=1e-5)
    with pytest.raises(ValueError, match="1 class"):
        classify(model, batch, 2)


@pytest.mark.parametrize("longest", [1, 3, 30])
def test_best_span(longest):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 2, 9)).astype("float32")

    def model(batch, training):
        return logits

    decoded = best_span(model, {}, 2, max_span_length=longest)
    for row, (starts, ends) in enumerate(log_softmax(logits)):
        score, span = max(
            (starts[s] + ends[e], (s, e))
            for s in range(9)
            for e in range(s, min(s + longest, 9))
        )
        assert tuple(np.array(decoded.tokens)[row]) == span
        np.testing.assert_allclose(np.array(decoded.scores)[row], score, atol=1e-5)


def test_best_span_lies_in_the_text():
    model = tiny_encoder("bert", SpanHead)
    randomize(model)
    batch = tiny_batch()
    tokens = np.array(best_span(model, batch, 2).tokens)
    lengths = (batch["encoder_input_tokens"] > 0).sum(-1)
    assert tokens.shape == (3, 2) and (tokens < lengths[:, None]).all()
    with pytest.raises(ValueError, match="max_length=1"):
        best_span(model, batch, 1)


def test_an_encoder_writes_no_text():
    with pytest.raises(ValueError, match="Received: EncoderOnly"):
        greedy_decode(tiny_encoder("bert"), tiny_batch(), 4)
