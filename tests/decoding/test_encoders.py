"""Answers of models without a decoder."""

import functools

import numpy as np
import pytest

from remixer_tf.decoding import best_span, classify, greedy_decode
from remixer_tf.models import ClassificationHead, SpanHead
from tests.compiled import compiled
from tests.layers.harness import randomize
from tests.models.tiny import tiny_batch, tiny_encoder


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.slow_on_jax
def test_classify():
    model = tiny_encoder("gmlp", functools.partial(ClassificationHead, 4))
    randomize(model)
    batch = tiny_batch(8)
    both = compiled(lambda batch: (classify(model, batch, 1), model(batch)), model)
    decoded, logits = both(batch)
    logits = np.array(logits)[:, 0]
    np.testing.assert_array_equal(np.array(decoded.tokens)[:, 0], logits.argmax(-1))
    expected = log_softmax(logits).max(-1)
    np.testing.assert_allclose(np.array(decoded.scores), expected, atol=1e-5)
    with pytest.raises(ValueError, match="1 class"):
        classify(model, batch, 2)


@pytest.mark.parametrize("longest, num_best", [(1, 20), (3, 20), (30, 20), (30, 2)])
def test_best_span(longest, num_best):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(6, 2, 9)).astype("float32")
    answerable = rng.integers(0, 3, (6, 9)).astype("int32")
    answerable[5] = 1  # no start

    def model(batch, training):
        return logits

    decoded = best_span(
        model, {"answerable": answerable}, 2, longest, num_best, null_threshold=0.5
    )
    for row, (starts, ends) in enumerate(logits):
        best = [np.argsort(-x)[:num_best] for x in (starts, ends)]
        spans = {
            (s, e): starts[s] + ends[e]
            for s in best[0]
            for e in best[1]
            if s <= e < s + longest and answerable[row, s] == 2 and answerable[row, e]
        }
        span = max(spans, key=spans.get, default=(0, 0))
        assert tuple(np.array(decoded.tokens)[row]) == span
        expected = [spans.get(span, -np.inf), starts[0] + ends[0], 0.5]
        np.testing.assert_allclose(np.array(decoded.scores)[row], expected, atol=1e-5)
    assert np.isinf(np.array(decoded.scores)[5, 0])


def test_a_batch_that_does_not_tell_the_context_is_an_error():
    model = tiny_encoder("bert", SpanHead)
    with pytest.raises(ValueError, match="Set feature_converter to SpanFeature"):
        best_span(model, tiny_batch(), 2)
    with pytest.raises(ValueError, match="max_length=1"):
        best_span(model, tiny_batch(), 1)


def test_an_encoder_writes_no_text():
    with pytest.raises(ValueError, match="Received: EncoderOnly"):
        greedy_decode(tiny_encoder("bert"), tiny_batch(), 4)
