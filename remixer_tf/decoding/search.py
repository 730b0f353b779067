"""What searches have in common: token after token, with a cache."""

from typing import Any, NamedTuple

import keras
from keras import ops

from remixer_tf.decoding.repetition import tokens_read
from remixer_tf.errors import UserError
from remixer_tf.layers.base import DecodeState

FIRST_CACHE_LENGTH = 64


class Answers(NamedTuple):
    """Several answers to each example.

    Attributes:
        tokens: int32 `[batch, answers, max_length]`, 0 after EOS.
        scores: float32 `[batch, answers]`, the sum of the tokens' log-probabilities;
            -inf where there is no such answer.
    """

    tokens: Any
    scores: Any


class Decoded(NamedTuple):
    """What decoding returns.

    Attributes:
        tokens: int32 `[batch, max_length]`, 0 after the end of sequence token.
        scores: float32 `[batch]`, the sum of the tokens' log-probabilities, EOS
            included; more of each example if its metrics compare more, see `best_span`.
        answers: `Answers`, the first of which is `tokens`; () where one was asked for.
    """

    tokens: Any
    scores: Any
    answers: Any = ()


class Hypotheses(NamedTuple):
    """What a search has written so far, `beams` answers to each example.

    Attributes:
        tokens: int32 `[batch, beams, max_length]`, 0 where nothing is written.
        scores: float32 `[batch, beams]`, the sum of the tokens' log-probabilities.
        running: bool `[batch, beams]`, False where an answer has ended.
    """

    tokens: Any
    scores: Any
    running: Any


class Choice(NamedTuple):
    """What a search takes as the next token of each hypothesis.

    Attributes:
        tokens: int32 `[batch, beams]`. Of a hypothesis that has ended it is ignored.
        ended: bool `[batch, beams]`, whether the hypothesis ends with this token.
        state: the search's state from here on, of the structure and shapes it had.
        parents: int32 `[batch, beams]`, the hypothesis of the same example that each
            goes on from; None if each goes on from itself.
    """

    tokens: Any
    ended: Any
    state: Any = ()
    parents: Any = None


def decode(
    model,
    batch,
    max_length,
    choose,
    state=(),
    beams=1,
    branches=False,
    constraint=None,
    repetition=None,
):
    """Writes token after token as a search says, until all hypotheses have ended.

    It reads the prompt, each row's own, step by step; runs the model with its cache;
    counts log-probabilities; and stops. The search, `choose`, says which tokens follow
    on which hypotheses, and when an answer ends. Its state is what it remembers: random
    state, finished answers.

    Shapes are static, so that it runs inside `tf.function`, XLA and a SavedModel. The
    cache starts short and grows fourfold when it is full, since a step's time is that
    of reading it: rows that end early do not pay for `max_length`.

    Args:
        model: an `EncoderDecoder` or a `DecoderOnly`.
        batch: dictionary with `encoder_input_tokens`, int32 `[batch, length]`.
        max_length: int, the number of tokens to decode at most, after the prompt.
        choose: `(log_probs, hypotheses, place, state) -> Choice`. It gets the
            log-probabilities of the next tokens, float32 `[batch, beams, vocab_size]`,
            -inf where the constraint forbids a token; the `Hypotheses`; int32
            `[batch]`, how many tokens of the answer are written; and the state.
            While an example's prompt is read its place is negative, and what is chosen
            for it is ignored, state included: an example's answer does not depend on
            its neighbours.
        state: what `choose` remembers: a tensor, or nested ones, with a leading axis
            `batch`.
        beams: int, hypotheses of each example.
        branches: bool, whether hypotheses go on from others: `Choice.parents`.
        constraint: a `Constraint`; None for none.
        repetition: a `Repetition`; None for none. As in Hugging Face's `generate`, its
            penalty is on log-probabilities where hypotheses branch, and else on logits.

    Returns:
        the `Hypotheses`, and the last state.

    Raises:
        ValueError: the model writes no text.
    """
    check_writes(model)
    prompt = model.prompt(batch)
    prompt_positions = ops.arange(prompt.shape[1], dtype="int32")[None, :]
    prompt_lengths = ops.sum(ops.cast(prompt > 0, "int32"), axis=1)
    positions = ops.arange(max_length, dtype="int32")
    max_steps = prompt.shape[1] + max_length
    length = min(FIRST_CACHE_LENGTH, max_steps)
    context, cache = model.start_decoding(batch, length, beams)
    cached = ops.arange(length, dtype="int32")
    numbers = ops.arange(beams, dtype="int32")
    steps = ops.arange(max_steps, dtype="int32")

    def unfinished(step, last, hypotheses, nodes, state, writers, cache):
        return ops.logical_and(step < length, ops.any(hypotheses.running))

    def advance(step, last, hypotheses, nodes, state, writers, cache):
        ancestry = None
        if branches:
            ancestry = ops.one_hot(writers[:, :, :length], beams, axis=1)[:, :, None]
        now = DecodeState(step, cached, ancestry)
        last = ops.reshape(last, (-1,))
        logits, cache = model.decode_step(last, cache, context, now)
        logits = ops.reshape(logits, (-1, beams, logits.shape[-1]))
        if repetition:
            read = tokens_read(prompt, prompt_lengths, hypotheses.tokens)
            if not branches:
                logits = repetition.penalize(logits, read, step)
        log_probs = logits - ops.logsumexp(logits, axis=-1, keepdims=True)
        if repetition:
            if branches:
                log_probs = repetition.penalize(log_probs, read, step)
            log_probs = repetition.mask(log_probs, read, step)
        place = step - prompt_lengths
        reading = place < 0
        if constraint is not None:
            log_probs = constraint.mask(log_probs, place, nodes)
        choice = choose(log_probs, hypotheses, place, state)
        state = keras.tree.map_structure(
            lambda old, new: ops.where(_expand(reading, old), old, new),
            state,
            choice.state,
        )
        if branches:
            hypotheses = Hypotheses(*(pick(x, choice.parents) for x in hypotheses))
            nodes = pick(nodes, choice.parents)
            # Of what is not yet written, each hypothesis will be the writer.
            written = pick(writers, choice.parents)
            writers = ops.where(steps <= step, written, numbers[:, None])
            rows = ops.reshape(flat_rows(choice.parents, beams), (-1,))
            cache = model.reorder_cache(cache, rows)
        tokens, scores, running = hypotheses
        free = ops.logical_and(running, ops.logical_not(reading)[:, None])
        given = ops.sum(ops.where(prompt_positions == step, prompt, 0), axis=1)
        last = ops.where(free, choice.tokens, given[:, None])
        # Without making parents' log-probabilities: they are many.
        size = log_probs.shape[-1]
        parents = choice.parents if branches else numbers
        log_probs = ops.reshape(log_probs, (-1, beams * size))
        taken = pick(log_probs, parents * size + choice.tokens)
        scores += ops.where(free, taken, 0.0)
        if constraint is not None:
            nodes = ops.where(free, constraint.advance(nodes, last), nodes)
        here = ops.equal(positions, place[:, None])[:, None, :]
        tokens = ops.where(here, last[:, :, None], tokens)
        ended = ops.logical_or(choice.ended, place[:, None] >= max_length - 1)
        running = ops.logical_and(
            running, ops.logical_not(ops.logical_and(free, ended))
        )
        hypotheses = Hypotheses(tokens, scores, running)
        return step + 1, last, hypotheses, nodes, state, writers, cache

    # Of the right batch size even when that is unknown while tracing. Decoders start
    # from id 0, the padding id.
    start = ops.zeros_like(prompt_lengths)[:, None] * numbers
    hypotheses = Hypotheses(
        tokens=start[:, :, None] * positions,
        scores=ops.cast(start, "float32"),
        running=ops.equal(start, 0),
    )
    nodes = start  # of the constraint
    # Who wrote each position that a hypothesis goes on from, `[batch, beams, steps]`.
    writers = start[:, :, None] * steps + numbers[:, None] if branches else ()
    step = ops.convert_to_tensor(0, "int32")
    loop = (step, start, hypotheses, nodes, state, writers)
    *loop, cache = ops.while_loop(unfinished, advance, (*loop, cache))
    while length < max_steps:
        length = min(4 * length, max_steps)
        cache = model.grow_cache(context, cache, length)
        cached = ops.arange(length, dtype="int32")
        *loop, cache = ops.while_loop(unfinished, advance, (*loop, cache))
    _, _, hypotheses, _, state, _ = loop
    return hypotheses, state


def check_writes(model):
    """Raises a ValueError unless the model writes token after token."""
    if not hasattr(model, "decode_step"):
        raise UserError(
            "Decoding, scoring, answering and exporting need a model that writes text, "
            f"EncoderDecoder or DecoderOnly. Received: {type(model).__name__}. To "
            "evaluate an encoder, set decode_fn to classify or best_span."
        )


def pick(x, index):
    """Takes for each example what an index names: `[batch, m, ..]`.

    Args:
        x: `[batch, n, ..]`, all but `batch` static.
        index: int32 `[batch, m]`, in `[0, n)`.
    """
    # Of rows, and not along an axis, which would cost ten operations for one.
    rows = flat_rows(index, x.shape[1])
    return ops.take(ops.reshape(x, (-1, *x.shape[2:])), rows, axis=0)


def flat_rows(index, size):
    """Where `[batch * size]` holds what an index `[batch, m]` names of each `size`."""
    examples = ops.arange(ops.shape(index)[0], dtype="int32")
    return examples[:, None] * size + index


def _expand(x, like):
    """Gives x as many axes as `like` has."""
    return x[(..., *[None] * (len(like.shape) - len(x.shape)))]
