"""Answers of models without a decoder: classes and spans."""

from typing import Any

from keras import ops

from remixer_tf.decoding.constraints import IMPOSSIBLE
from remixer_tf.decoding.search import Decoded
from remixer_tf.errors import UserError


def classify(model: Any, batch: Any, max_length: Any) -> Decoded:
    """Takes the likeliest class of each target of a classifier, as `tokens`.

    Evaluation uses it as it uses a search. A model with a `ClassificationHead` gives
    one class an example.

    Args:
        model: an `EncoderOnly`.
        batch: what the model reads.
        max_length: int, the number of targets.

    Returns:
        a `Decoded`; the score is the sum of the classes' log-probabilities.

    Raises:
        ValueError: the model has another number of targets.
    """
    logits = model(batch, training=False)
    if logits.shape[1] != max_length:
        raise UserError(
            f"The model says {logits.shape[1]} class(es) about an example, and the "
            f"task's targets have the length {max_length}. Set feature_lengths' "
            f"'targets' to {logits.shape[1]}."
        )
    classes = ops.cast(ops.argmax(logits, axis=-1), "int32")
    log_prob = ops.max(logits, axis=-1) - ops.logsumexp(logits, axis=-1)
    return Decoded(classes, ops.sum(log_prob, axis=-1))


def best_span(
    model: Any,
    batch: Any,
    max_length: Any,
    max_span_length: int = 30,
    num_best: int = 20,
    null_threshold: float | None = None,
) -> Decoded:
    """Takes the best answer in a window of a context, by BERT's protocol for SQuAD.

    The candidates are pairs of a start and an end, each among the `num_best` largest
    logits of its kind. A pair is a span if both tokens are in the context, the start is
    in its window of maximum context, `start <= end`, and it has at most
    `max_span_length` tokens. The span with the largest sum of logits wins. (Devlin et
    al. 2018, sections 4.2 and 4.3, and their run_squad.py.)

    The windows of a question are compared in the metric: see `remixer_tf.tasks.squad`.

    Args:
        model: an `EncoderOnly` with a `SpanHead`.
        batch: what `SpanFeatureConverter` makes: what the model reads, and
            `answerable`.
        max_length: int, 2: what evaluation asks for is start and end.
        max_span_length: int, tokens.
        num_best: int.
        null_threshold: float. A question has no answer if the logits for that exceed
            those of the best span by more. None is SQuAD 1.1: each has one.

    Returns:
        a `Decoded`: tokens `[batch, 2]`, [CLS] twice where there is no span; scores
        `[batch, 3]`, the sum of the span's two logits (-inf without one), that of no
        answer, [CLS]'s, and the threshold (inf for None).

    Raises:
        ValueError: max_length is not 2, or the batch does not mark the context.
    """
    if max_length != 2:
        raise UserError(f"A span is start and end. Received: max_length={max_length}")
    if "answerable" not in batch:
        raise UserError(
            "A span lies in the context, which a batch tells under 'answerable'. "
            f"Received: {', '.join(sorted(batch))}. Set feature_converter to "
            "SpanFeatureConverter."
        )
    logits = model(batch, training=False)
    null = logits[:, 0, 0] + logits[:, 1, 0]
    length = logits.shape[-1]
    least = ops.top_k(logits, min(num_best, length))[0][..., -1:]
    answerable = batch["answerable"]
    allowed = ops.stack([answerable == 2, answerable > 0], axis=1)
    allowed = ops.logical_and(allowed, logits >= least)
    logits = ops.where(allowed, logits, IMPOSSIBLE)
    places = ops.arange(length, dtype="int32")
    width = places[None, :] - places[:, None]
    valid = ops.logical_and(width >= 0, width < max_span_length)
    spans = logits[:, 0, :, None] + logits[:, 1, None, :]
    spans = ops.where(valid, spans, IMPOSSIBLE)
    spans = ops.reshape(spans, (-1, length * length))
    best = ops.cast(ops.argmax(spans, axis=-1), "int32")
    tokens = ops.stack([best // length, best % length], axis=1)
    threshold = float("inf") if null_threshold is None else null_threshold
    score = ops.max(spans, axis=-1)
    scores = ops.stack([score, null, ops.full_like(null, threshold)], axis=1)
    return Decoded(tokens, scores)
