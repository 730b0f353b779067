"""Answers of models without a decoder: classes and spans."""

from keras import ops

from remixer_tf.decoding.search import Decoded


def classify(model, batch, max_length):
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
        raise ValueError(
            f"The model says {logits.shape[1]} class(es) about an example, and the "
            f"task's targets have the length {max_length}. Set feature_lengths' "
            f"'targets' to {logits.shape[1]}."
        )
    classes = ops.cast(ops.argmax(logits, axis=-1), "int32")
    log_prob = ops.max(logits, axis=-1) - ops.logsumexp(logits, axis=-1)
    return Decoded(classes, ops.sum(log_prob, axis=-1))


def best_span(model, batch, max_length, max_span_length=30):
    """Takes the likeliest span, `start <= end`, of a model with a `SpanHead`.

    BERT's protocol for SQuAD: the largest sum of a start's and an end's logit among
    the spans of at most `max_span_length` tokens.

    Args:
        model: an `EncoderOnly`.
        batch: what the model reads.
        max_length: int, 2: what evaluation asks for is start and end.
        max_span_length: int.

    Returns:
        a `Decoded`, tokens `[batch, 2]`; the score is the sum of both
        log-probabilities.

    Raises:
        ValueError: max_length is not 2.
    """
    if max_length != 2:
        raise ValueError(f"A span is start and end. Received: max_length={max_length}")
    logits = model(batch, training=False)
    log_probs = logits - ops.logsumexp(logits, axis=-1, keepdims=True)
    length = logits.shape[-1]
    places = ops.arange(length, dtype="int32")
    width = places[None, :] - places[:, None]
    valid = ops.logical_and(width >= 0, width < max_span_length)
    spans = log_probs[:, 0, :, None] + log_probs[:, 1, None, :]
    spans = ops.where(valid, spans, -float("inf"))
    spans = ops.reshape(spans, (-1, length * length))
    best = ops.cast(ops.argmax(spans, axis=-1), "int32")
    tokens = ops.stack([best // length, best % length], axis=1)
    return Decoded(tokens, ops.max(spans, axis=-1))
