"""What searches have in common: token after token, with a cache."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from remixer_tf.decoding.constraints import AnswerLimits, Constraint
from remixer_tf.decoding.repetition import Repetition, tokens_read
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


class Search(NamedTuple):
    """What `decode` asks which tokens to write.

    Attributes:
        choose: `(log_probs, hypotheses, place, state) -> Choice`. It gets the
            log-probabilities of the next tokens, float32 `[batch, beams, vocab_size]`,
            -inf where the limits forbid a token; the `Hypotheses`; int32 `[batch]`, how
            many tokens of the answer are written; and the state. While an example's
            prompt is read its place is negative, and what is chosen for it is ignored,
            state included: an example's answer does not depend on its neighbours.
        state: what `choose` remembers, such as finished answers: a tensor, or nested
            ones, with a leading axis `batch`.
        beams: int, hypotheses of each example.
        branches: bool, whether hypotheses go on from others: `Choice.parents`.
    """

    choose: Callable
    state: Any = ()
    beams: int = 1
    branches: bool = False


def decode(model, batch, max_length, search, eos_id=1, limits=None):
    """Writes token after token as a search says, until all hypotheses have ended.

    It reads the prompt, each row's own, step by step; runs the model with its cache;
    counts log-probabilities; and stops. The search says which tokens follow on which
    hypotheses, and when an answer ends.

    Shapes are static, so that it runs inside `tf.function`, XLA and a SavedModel. The
    cache starts short and grows fourfold when it is full, since a step's time is that
    of reading it: rows that end early do not pay for `max_length`.

    Args:
        model: an `EncoderDecoder` or a `DecoderOnly`.
        batch: dictionary with `encoder_input_tokens`, int32 `[batch, length]`.
        max_length: int, the number of tokens to decode at most, after the prompt.
        search: a `Search`.
        eos_id: int, the token that ends an answer.
        limits: an `AnswerLimits`; None for none. As in Hugging Face's `generate`, the
            penalty of repetition is on log-probabilities where hypotheses branch, and
            else on logits.

    Returns:
        the `Hypotheses`, and the last state.

    Raises:
        ValueError: the model writes no text, or what `Constraint` and `Repetition`
            raise.
    """
    check_writes(model)
    limits = limits or AnswerLimits()
    writing = _Writing(model, model.prompt(batch), max_length, search, eos_id, limits)
    longest = writing.steps.shape[0]
    length = min(FIRST_CACHE_LENGTH, longest)
    context, cache = model.start_decoding(batch, length, search.beams)
    now = writing.start(cache)
    while True:
        cached = ops.arange(length, dtype="int32")
        step = functools.partial(writing.step, context, cached)
        now = _Now(*ops.while_loop(_is_unfinished(length), step, now))
        if length == longest:
            return now.hypotheses, now.state
        length = min(4 * length, longest)
        now = now._replace(cache=model.grow_cache(context, now.cache, length))


def _is_unfinished(length):
    """Whether an answer goes on and the cache has room, a function of a `_Now`."""
    return lambda step, last, hypotheses, *_: ops.logical_and(
        step < length, ops.any(hypotheses.running)
    )


class _Now(NamedTuple):
    """Where writing is.

    Attributes:
        step: int32 scalar, the position that is written next, prompt included.
        last: int32 `[batch, beams]`, the tokens before it.
        hypotheses: `Hypotheses`.
        nodes: int32 `[batch, beams]`, of the `Constraint`.
        state: the search's.
        writers: int32 `[batch, beams, steps]`, who wrote each position that a
            hypothesis goes on from; () where none goes on from others.
        cache: the model's.
    """

    step: Any
    last: Any
    hypotheses: Any
    nodes: Any
    state: Any
    writers: Any
    cache: Any


class _Writing:
    """The steps of `decode`, see there."""

    def __init__(self, model, prompt, max_length, search, eos_id, limits):
        self.model, self.prompt, self.search = model, prompt, search
        self.prompt_positions = ops.arange(prompt.shape[1], dtype="int32")[None, :]
        self.prompt_lengths = ops.sum(ops.cast(prompt > 0, "int32"), axis=1)
        self.positions = ops.arange(max_length, dtype="int32")
        self.numbers = ops.arange(search.beams, dtype="int32")
        self.steps = ops.arange(prompt.shape[1] + max_length, dtype="int32")
        self.constraint = Constraint(
            eos_id, max_length, limits.min_length, limits.allowed
        )
        self.repetition = Repetition(
            limits.no_repeat_ngram_size, limits.repetition_penalty
        )

    def start(self, cache):
        """The first `_Now`."""
        # Of the right batch size even when that is unknown while tracing. Decoders
        # start from id 0, the padding id.
        start = ops.zeros_like(self.prompt_lengths)[:, None] * self.numbers
        hypotheses = Hypotheses(
            tokens=start[:, :, None] * self.positions,
            scores=ops.cast(start, "float32"),
            running=ops.equal(start, 0),
        )
        writers = ()
        if self.search.branches:
            writers = start[:, :, None] * self.steps + self.numbers[:, None]
        step = ops.convert_to_tensor(0, "int32")
        return _Now(step, start, hypotheses, start, self.search.state, writers, cache)

    def step(self, context, cached, *now):
        """The next `_Now`; `cached` are the positions that the cache holds."""
        now, ancestry, beams = _Now(*now), None, self.search.beams
        if self.search.branches:
            writers = now.writers[:, :, : cached.shape[0]]
            ancestry = ops.one_hot(writers, beams, axis=1)[:, :, None]
        last = ops.reshape(now.last, (-1,))
        state = DecodeState(now.step, cached, ancestry)
        logits, cache = self.model.decode_step(last, now.cache, context, state)
        logits = ops.reshape(logits, (-1, beams, logits.shape[-1]))
        log_probs = self._log_probs(logits, now)
        place = now.step - self.prompt_lengths
        choice = self.search.choose(log_probs, now.hypotheses, place, now.state)
        return self._write(log_probs, choice, now._replace(cache=cache))

    def _log_probs(self, logits, now):
        """Those of the next tokens; -inf for what the limits forbid."""
        repetition, branches = self.repetition, self.search.branches
        if repetition:
            tokens = now.hypotheses.tokens
            read = tokens_read(self.prompt, self.prompt_lengths, tokens)
        if repetition and not branches:
            logits = repetition.penalize(logits, read, now.step)
        log_probs = logits - ops.logsumexp(logits, axis=-1, keepdims=True)
        if repetition and branches:
            log_probs = repetition.penalize(log_probs, read, now.step)
        if repetition:
            log_probs = repetition.mask(log_probs, read, now.step)
        place = now.step - self.prompt_lengths
        return self.constraint.mask(log_probs, place, now.nodes)

    def _write(self, log_probs, choice, now):
        """The next `_Now`, after the choice."""
        _, beams, size = log_probs.shape
        _, _, hypotheses, nodes, _, writers, cache = now
        place = now.step - self.prompt_lengths
        reading = place < 0
        state = keras.tree.map_structure(
            lambda old, new: ops.where(_expand(reading, old), old, new),
            now.state,
            choice.state,
        )
        parents = self.numbers
        if self.search.branches:
            parents = choice.parents
            hypotheses = Hypotheses(*(pick(x, parents) for x in hypotheses))
            nodes = pick(nodes, parents)
            # Of what is not yet written, each hypothesis will be the writer.
            written = pick(writers, parents)
            writers = ops.where(self.steps <= now.step, written, self.numbers[:, None])
            rows = ops.reshape(flat_rows(parents, beams), (-1,))
            cache = self.model.reorder_cache(cache, rows)
        tokens, scores, running = hypotheses
        free = ops.logical_and(running, ops.logical_not(reading)[:, None])
        given = ops.equal(self.prompt_positions, now.step)
        given = ops.sum(ops.where(given, self.prompt, 0), axis=1)
        last = ops.where(free, choice.tokens, given[:, None])
        # Without making parents' log-probabilities: they are many.
        log_probs = ops.reshape(log_probs, (-1, beams * size))
        taken = pick(log_probs, parents * size + choice.tokens)
        scores += ops.where(free, taken, 0.0)
        nodes = ops.where(free, self.constraint.advance(nodes, last), nodes)
        here = ops.equal(self.positions, place[:, None])[:, None, :]
        tokens = ops.where(here, last[:, :, None], tokens)
        cut = place[:, None] >= self.positions.shape[0] - 1
        ended = ops.logical_and(free, ops.logical_or(choice.ended, cut))
        running = ops.logical_and(running, ops.logical_not(ended))
        hypotheses = Hypotheses(tokens, scores, running)
        return _Now(now.step + 1, last, hypotheses, nodes, state, writers, cache)


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
