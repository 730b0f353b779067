"""The loop of all searches: token after token, with a cache."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from keras import ops

from remixer_tf.decoding.constraints import AnswerLimits, Constraint
from remixer_tf.decoding.repetition import Repetition, tokens_read
from remixer_tf.decoding.row_settings import column, flat_rows, of_rows, pick
from remixer_tf.errors import UserError, check_integers
from remixer_tf.layers.base import DecodeState, by_row, reads_at_once
from remixer_tf.objectives.batches import check_known_ids

FIRST_CACHE_LENGTH = 64
HALVINGS = "halvings"  # of a batch, see `decode`
TURN = "turn"  # of a batch, see `remixer_tf.decoding.turns`


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
    """The result of decoding.

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
    """The answers as written so far, `beams` of them to each example.

    Attributes:
        tokens: int32 `[batch, beams, max_length]`, 0 where nothing is written.
        scores: float32 `[batch, beams]`, the sum of the tokens' log-probabilities.
        running: bool `[batch, beams]`, False where an answer has ended.
    """

    tokens: Any
    scores: Any
    running: Any


class Choice(NamedTuple):
    """A search's next token of each hypothesis.

    Attributes:
        tokens: int32 `[batch, beams]`, ignored where a hypothesis has ended.
        ended: bool `[batch, beams]`, whether the hypothesis ends with this token.
        state: the search's state from here on, of the structure and shapes it had.
        parents: int32 `[batch, beams]`, the hypothesis of the same example that each
            continues; None if each continues itself.
    """

    tokens: Any
    ended: Any
    state: Any = ()
    parents: Any = None


class Search(NamedTuple):
    """The part of `decode` that says which tokens to write.

    Attributes:
        choose: `(log_probs, hypotheses, place, state) -> Choice`. It gets the
            log-probabilities of the next tokens, float32 `[batch, beams, vocab_size]`,
            -inf where the limits forbid a token; the `Hypotheses`; int32 `[batch]`, how
            many tokens of the answer are written; and the state. An example's choice
            and state are ignored while its prompt is read, when its place is negative,
            and once all its hypotheses have ended: its answer does not depend on its
            neighbours.
        state: the memory of `choose`, such as finished answers: a tensor, or nested
            ones, with a leading axis `batch`.
        beams: int, hypotheses of each example.
        branches: bool, whether hypotheses continue others: `Choice.parents`.
    """

    choose: Callable
    state: Any = ()
    beams: int = 1
    branches: bool = False


def decode(
    model: Any,
    batch: Any,
    max_length: int,
    search: Search | Callable[..., Search],
    eos_id: int = 1,
    limits: AnswerLimits | None = None,
) -> tuple[Hypotheses, Any]:
    """Writes token after token as a search says, until all hypotheses have ended.

    It reads the prompt; runs the model with its cache; counts log-probabilities; and
    stops. The search says which tokens follow on which hypotheses, and when an answer
    ends. As many tokens as the shortest prompt has are read in one call; rows whose
    prompts are longer read the rest step by step.

    Shapes are static, so that it runs inside `tf.function`, XLA and a SavedModel. The
    cache starts short and grows fourfold when it is full, since a step's time is that
    of reading it: rows that end early do not pay for `max_length`.

    All rows are computed until the last has ended. If the batch has `halvings`, an int,
    and `search` is a function, half of the rows leave the batch as soon as they have
    ended, and later half of the others, that many times. Each halving is another loop
    to compile.

    Args:
        model: an `EncoderDecoder` or a `DecoderOnly`.
        batch: dictionary with `encoder_input_tokens`, int32 `[batch, length]`; what
            else the model's `prompt` reads; and settings of each row's own, if any, see
            `row_settings`.
        max_length: int, the number of tokens to decode at most, after the prompt. A
            row's own `max_length` is at most that.
        search: a `Search`, or a function of a batch that makes one of the batch's rows.
        eos_id: int, the token that ends an answer.
        limits: an `AnswerLimits`; None for none. As in Hugging Face's `generate`, the
            penalty of repetition is on log-probabilities where hypotheses branch, and
            else on logits.

    Returns:
        the `Hypotheses`, and the last state.

    Raises:
        ValueError: the model writes no text, or lacks an id of the batch or `eos_id`;
            the prompt's width and max_length are together more than a layer can read;
            or see `AnswerLimits`.
    """
    check_writes(model)
    check_integers(0, max_length=max_length)
    check_integers(-1, eos_id=eos_id)  # -1: answers never end
    size = getattr(model, "vocab_size", None)
    if size is not None and eos_id >= size:
        raise UserError(
            f"eos_id must be one of the model's {size} ids, or -1 for answers that "
            f"never end. Received: eos_id={eos_id}"
        )
    check_known_ids(batch, model, "encoder_input_tokens", "decoder_prompt_tokens")
    limits = AnswerLimits() if limits is None else limits
    if not isinstance(limits, AnswerLimits):
        raise UserError(f"limits must be AnswerLimits(). Received: {limits!r:.200}")
    writing = _Writing(model, batch, max_length, search, eos_id, limits)
    if TURN in batch:
        return batch[TURN].take(model, batch, writing)
    longest = writing.steps.shape[0]
    length = min(FIRST_CACHE_LENGTH, longest)
    context, cache = model.start_decoding(batch, length, writing.search.beams)
    now, width = writing.start(cache), 0
    while True:
        cached = ops.arange(length, dtype="int32")  # positions
        if width < writing.width:
            width = min(length, writing.width)
            now = writing.read(context, cached, width, now)
        now = writing.write(context, cached, now)
        if length == longest:
            return now.hypotheses, now.state
        length = min(4 * length, longest)
        now = now._replace(cache=model.grow_cache(context, now.cache, length))


class _Now(NamedTuple):
    """Where writing is."""

    step: Any  # int32 scalar, the position that is written next, prompt included
    last: Any  # int32 [batch, beams], the tokens before it
    hypotheses: Any
    nodes: Any  # int32 [batch, beams], the constraint's
    state: Any  # the search's
    # int32 [batch, beams, steps], the writer of each position of a hypothesis; ()
    # where hypotheses do not branch.
    writers: Any
    cache: Any


class _Writing:
    """The steps of `decode`, see there."""

    def __init__(self, model, batch, max_length, search, eos_id, limits):
        self.arguments = model, batch, max_length, search, eos_id, limits
        prompt = model.prompt(batch)
        self.halvings = batch.get(HALVINGS, 0) if callable(search) else 0
        self.model, self.prompt = model, prompt
        self.search = search = search(batch) if callable(search) else search
        self.prompt_lengths = ops.sum(ops.cast(prompt > 0, "int32"), axis=1)
        # A call reads at most so many tokens of a prompt; 0: its steps read it.
        self.width = prompt.shape[1] if reads_at_once(model) else 0
        self.shortest = ops.min(self.prompt_lengths, initial=self.width)
        self.positions = ops.arange(max_length, dtype="int32")
        self.numbers = ops.arange(search.beams, dtype="int32")
        self.steps = ops.arange(prompt.shape[1] + max_length, dtype="int32")
        self.max_length = column(of_rows(batch, "max_length", max_length))
        self.constraint = Constraint(eos_id, max_length, limits, batch)
        self.repetition = Repetition(limits, batch)

    def start(self, cache):
        """The first `_Now`: nothing is read."""
        # A product, to have the batch size even if it is unknown while tracing.
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
        last = start + ops.take(self._inputs(), self.shortest, axis=1)[:, None]
        return _Now(step, last, hypotheses, start, self.search.state, writers, cache)

    def _inputs(self):
        """The decoder's first inputs: id 0, padding's, and the prompt."""
        return ops.pad(self.prompt, [[0, 0], [1, 0]])

    def read(self, context, cached, width, now):
        """Reads what all prompts have, if it is unread and at most `width` tokens."""
        inputs = ops.repeat(self._inputs()[:, :width], self.search.beams, axis=0)
        state = self._state(self.shortest, cached, now.writers)

        def is_next(step, cache):
            return ops.logical_and(step < self.shortest, self.shortest <= width)

        def read(step, cache):
            # This reads `step`, 0: XLA would move what does not out of the loop, and
            # so read prompts at every width.
            tokens = ops.where(self.steps[:width] >= step, inputs, 0)
            return self.shortest, self.model.prefill(tokens, cache, context, state)

        # A loop of one turn: LiteRT converts no `ops.cond` with loops in it, such as
        # those of mixtures.
        step, cache = ops.while_loop(is_next, read, (now.step, now.cache))
        return now._replace(step=step, cache=cache)

    def write(self, context, cached, now):
        """Takes steps until all rows have ended, or the cache is full."""
        rows = ops.shape(now.last)[0]
        half = -(-rows // 2)

        def is_unfinished(step, last, hypotheses, *_):
            in_cache = ops.logical_and(self.shortest <= step, step < cached.shape[0])
            unfinished = ops.any(hypotheses.running)
            if self.halvings:
                unfinished = ops.sum(_running(hypotheses)) > half
            return ops.logical_and(in_cache, unfinished)

        step = functools.partial(self.step, context, cached)
        now = _Now(*ops.while_loop(is_unfinished, step, now))
        if not self.halvings:
            return now
        # If more than half are running, the cache is full, and no step follows.
        _, running = ops.top_k(_running(now.hypotheses), half)
        places = functools.partial(places_of, ops.cast(running, "int32"), rows)
        alone = self._of(places)
        new = alone.write(_take(context, places), cached, _take(now, places))
        return _put(now, places, new)

    def start_apart(self, context, cache, length):
        """As `start`, and `read`, with rows at steps of their own, `[batch]`.

        `length` is the number of positions in the cache.
        """
        now = self.start(cache)
        step = ops.zeros_like(self.prompt_lengths)
        if self.width:
            step = self.prompt_lengths
            inputs = ops.repeat(self._inputs()[:, :-1], self.search.beams, axis=0)
            state = self._state(step, ops.arange(length, dtype="int32"), ())
            cache = self.model.prefill(inputs, cache, context, state)
        last = ops.take_along_axis(self._inputs(), step[:, None], axis=1)
        last = ops.zeros_like(now.last) + last
        return now._replace(step=step, last=last, cache=cache)

    def write_apart(self, context, now, length, steps, running):
        """Takes steps, see `Turn`, with rows at steps of their own."""
        cached = ops.arange(length, dtype="int32")

        def goes_on(taken, step, last, hypotheses, *_):
            runs = ops.any(hypotheses.running, axis=1)
            has_room = ops.max(ops.where(runs, step, 0)) < length
            enough = ops.sum(ops.cast(runs, "int32")) > running
            return ops.logical_and(taken < steps, ops.logical_and(has_room, enough))

        def step(taken, *now):
            return taken + 1, *self.step(context, cached, *now)

        start = ops.convert_to_tensor(0, "int32"), *now
        _, *now = ops.while_loop(goes_on, step, start)
        return _Now(*now)

    def _of(self, places):
        """The writing of some rows alone; `places` finds them, see `places_of`."""
        model, batch, *others = self.arguments
        tensors = {name: x for name, x in batch.items() if name != HALVINGS}
        batch = {**_take(tensors, places), HALVINGS: self.halvings - 1}
        alone = _Writing(model, batch, *others)
        alone.shortest = self.shortest  # `read` has read so much of all prompts.
        return alone

    def _state(self, step, cached, writers):
        """The `DecodeState`; `cached` are the cache's positions."""
        ancestry = None
        if len(step.shape):  # Rows that have ended count on.
            step = ops.repeat(ops.minimum(step, cached.shape[0] - 1), self.search.beams)
        if self.search.branches:
            writers = writers[:, :, : cached.shape[0]]
            ancestry = ops.one_hot(writers, self.search.beams, axis=1)[:, :, None]
        return DecodeState(step, cached, ancestry)

    def step(self, context, cached, *now):
        """The next `_Now`; `cached` are the cache's positions."""
        now, beams = _Now(*now), self.search.beams
        last = ops.reshape(now.last, (-1,))
        state = self._state(now.step, cached, now.writers)
        logits, cache = self.model.decode_step(last, now.cache, context, state)
        logits = ops.reshape(logits, (-1, beams, logits.shape[-1]))
        log_probs = self._log_probs(logits, now)
        place = now.step - self.prompt_lengths
        choice = self.search.choose(log_probs, now.hypotheses, place, now.state)
        return self._write(log_probs, choice, now._replace(cache=cache))

    def _log_probs(self, logits, now):
        """Log-probabilities of the next tokens; -inf where the limits forbid one."""
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
        ended = ops.logical_not(ops.any(now.hypotheses.running, axis=1))
        waits = ops.logical_or(reading, ended)
        state = keras.tree.map_structure(
            lambda old, new: ops.where(_expand(waits, old), old, new),
            now.state,
            choice.state,
        )
        parents = self.numbers
        if self.search.branches:
            parents = choice.parents
            hypotheses = Hypotheses(*(pick(x, parents) for x in hypotheses))
            nodes = pick(nodes, parents)
            # Positions that are not yet written will be the hypothesis' own.
            written = pick(writers, parents)
            writers = ops.where(self.steps <= now.step, written, self.numbers[:, None])
            rows = ops.reshape(flat_rows(parents, beams), (-1,))
            cache = self.model.reorder_cache(cache, rows)
        tokens, scores, running = hypotheses
        free = ops.logical_and(running, ops.logical_not(reading)[:, None])
        here = ops.equal(self.steps[: self.prompt.shape[1]], by_row(now.step))
        given = ops.sum(ops.where(here, self.prompt, 0), axis=1)
        last = ops.where(free, choice.tokens, given[:, None])
        # Without making parents' log-probabilities: they are many.
        log_probs = ops.reshape(log_probs, (-1, beams * size))
        taken = pick(log_probs, parents * size + choice.tokens)
        scores += ops.where(free, taken, 0.0)
        nodes = ops.where(free, self.constraint.advance(nodes, last), nodes)
        here = ops.equal(self.positions, place[:, None])[:, None, :]
        tokens = ops.where(here, last[:, :, None], tokens)
        cut = place[:, None] >= self.max_length - 1
        ended = ops.logical_and(free, ops.logical_or(choice.ended, cut))
        running = ops.logical_and(running, ops.logical_not(ended))
        hypotheses = Hypotheses(tokens, scores, running)
        return _Now(now.step + 1, last, hypotheses, nodes, state, writers, cache)


def check_writes(model: Any) -> None:
    """Raises a ValueError unless the model writes token after token."""
    if not hasattr(model, "decode_step"):
        raise UserError(
            "Decoding, scoring and fit() need a model that writes text, EncoderDecoder "
            f"or DecoderOnly. Received: {type(model).__name__}. An encoder classifies "
            "and embeds. To evaluate it, set decode_fn to classify or best_span."
        )


def _running(hypotheses):
    """1 for each row that has not ended, else 0: int32 `[batch]`."""
    return ops.cast(ops.any(hypotheses.running, axis=1), "int32")


def places_of(rows, size, x):
    """Where the first axis of x holds what belongs to `rows`, int32 `[n]`, of `size`.

    It has as many successive entries for each row. None if it has another size, as that
    of a constant.
    """
    first = ops.shape(x)[0] if len(ops.shape(x)) else None
    if type(first) is not type(size):  # One is known while tracing, and one is not.
        return None
    if isinstance(size, int) and first % size:
        return None
    each = first // size
    places = rows[:, None] * each + ops.arange(each, dtype="int32")
    return ops.reshape(places, (-1,))


def _take(values, places):
    """Takes some rows of nested tensors, see `places_of`."""

    def take(x):
        index = None if x is None else places(x)
        return x if index is None else ops.take(x, index, axis=0)

    return keras.tree.map_structure(take, values)


def _put(values, places, new):
    """Puts rows, as `_take` takes them, into nested tensors."""

    def put(x, y):
        index = places(x)
        return y if index is None else ops.scatter_update(x, index[:, None], y)

    return keras.tree.map_structure(put, values, new)


def _expand(x, like):
    """Gives x as many axes as `like` has."""
    return x[(..., *[None] * (len(like.shape) - len(x.shape)))]
