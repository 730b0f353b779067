"""Decoding with a cache. Searches share `start_decoding` and `decode_step`."""

from typing import Any, NamedTuple

from keras import ops

FIRST_CACHE_LENGTH = 64


class Decoded(NamedTuple):
    """What a search returns.

    Attributes:
        tokens: int32 `[batch, max_length]`, 0 after the end of sequence token.
        scores: float32 `[batch]`, the sum of the tokens' log-probabilities.
    """

    tokens: Any
    scores: Any


def greedy_decode(model, batch, max_length, eos_id=1):
    """Takes the likeliest token at every step, until all rows have ended.

    Shapes are static, so that it runs inside `tf.function`, XLA and a SavedModel. The
    cache starts short and grows fourfold when it is full, since a step's time is that
    of reading it: rows that end early do not pay for `max_length`. A prompt is read
    step by step, each row's own.

    Args:
        model: an `EncoderDecoder` or a `DecoderOnly`.
        batch: dictionary with `encoder_input_tokens`, int32 `[batch, length]`.
        max_length: int, the number of tokens to decode at most, after the prompt.
        eos_id: int, the token that ends a sequence.

    Returns:
        a `Decoded`.

    Raises:
        ValueError: the model writes no text.
    """
    check_writes(model)
    # Ids of the right batch size even when that is unknown while tracing. Decoders
    # start from id 0, the padding id.
    start = ops.zeros_like(batch["encoder_input_tokens"][:, 0])
    positions = ops.arange(max_length, dtype="int32")[None, :]
    prompt = model.prompt(batch)
    prompt_positions = ops.arange(prompt.shape[1], dtype="int32")[None, :]
    prompt_lengths = ops.sum(ops.cast(prompt > 0, "int32"), axis=1)
    max_steps = prompt.shape[1] + max_length
    length = min(FIRST_CACHE_LENGTH, max_steps)
    context, cache = model.start_decoding(batch, length)

    def unfinished(step, tokens, last, scores, running, cache):
        return ops.logical_and(step < length, ops.any(running))

    def advance(step, tokens, last, scores, running, cache):
        logits, cache = model.decode_step(last, cache, context._replace(step=step))
        best = ops.cast(ops.argmax(logits, axis=-1), "int32")
        log_prob = ops.max(logits, axis=-1) - ops.logsumexp(logits, axis=-1)
        here = ops.equal(prompt_positions, step)
        given = ops.sum(ops.where(here, prompt, 0), axis=1)
        free = ops.logical_and(running, step >= prompt_lengths)
        last = ops.where(free, best, given)
        scores += ops.where(free, log_prob, 0.0)
        place = step - prompt_lengths
        here = ops.equal(positions, place[:, None])
        tokens = ops.where(here, last[:, None], tokens)
        ended = ops.logical_or(ops.equal(last, eos_id), place >= max_length - 1)
        running = ops.logical_and(
            running, ops.logical_not(ops.logical_and(free, ended))
        )
        return step + 1, tokens, last, scores, running, cache

    state = (
        ops.convert_to_tensor(0, "int32"),
        start[:, None] * positions,
        start,
        ops.cast(start, "float32"),
        ops.equal(start, 0),
    )
    *state, cache = ops.while_loop(unfinished, advance, (*state, cache))
    while length < max_steps:
        length = min(4 * length, max_steps)
        context, cache = model.grow_cache(context, cache, length)
        *state, cache = ops.while_loop(unfinished, advance, (*state, cache))
    _, tokens, _, scores, _ = state
    return Decoded(tokens, scores)


def check_writes(model):
    """Raises a ValueError unless the model writes token after token."""
    if not hasattr(model, "decode_step"):
        raise ValueError(
            "Decoding, answering and exporting need a model that writes text, "
            f"EncoderDecoder or DecoderOnly. Received: {type(model).__name__}. To "
            "evaluate an encoder, set decode_fn to classify or best_span."
        )


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
