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
    of reading it: rows that end early do not pay for `max_length`.

    Args:
        model: an `EncoderDecoder`.
        batch: dictionary with `encoder_input_tokens`, int32 `[batch, length]`.
        max_length: int, the number of tokens to decode at most.
        eos_id: int, the token that ends a sequence.

    Returns:
        a `Decoded`.
    """
    # Ids of the right batch size even when that is unknown while tracing. T5's
    # decoders start from id 0, the padding id.
    start = ops.zeros_like(batch["encoder_input_tokens"][:, 0])
    positions = ops.arange(max_length, dtype="int32")[None, :]
    length = min(FIRST_CACHE_LENGTH, max_length)
    context, cache = model.start_decoding(batch, length)

    def unfinished(step, tokens, last, scores, running, cache):
        return ops.logical_and(step < length, ops.any(running))

    def advance(step, tokens, last, scores, running, cache):
        logits, cache = model.decode_step(last, cache, context._replace(step=step))
        best = ops.cast(ops.argmax(logits, axis=-1), "int32")
        log_prob = ops.max(logits, axis=-1) - ops.logsumexp(logits, axis=-1)
        last = ops.where(running, best, 0)
        scores += ops.where(running, log_prob, 0.0)
        tokens = ops.where(ops.equal(positions, step), last[:, None], tokens)
        running = ops.logical_and(running, ops.not_equal(last, eos_id))
        return step + 1, tokens, last, scores, running, cache

    state = (
        ops.convert_to_tensor(0, "int32"),
        start[:, None] * positions,
        start,
        ops.cast(start, "float32"),
        ops.equal(start, 0),
    )
    *state, cache = ops.while_loop(unfinished, advance, (*state, cache))
    while length < max_length:
        length = min(4 * length, max_length)
        context, cache = model.grow_cache(context, cache, length)
        *state, cache = ops.while_loop(unfinished, advance, (*state, cache))
    _, tokens, _, scores, _ = state
    return Decoded(tokens, scores)
