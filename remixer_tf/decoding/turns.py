"""Continuous batching: rows of a search that come and go while others are written.

A search, such as `greedy_decode`, is called once a turn, see `Turn`. Between turns
`merge` takes rows out of a batch and others in (Yu et al. 2022, "Orca", section 3.1,
iteration-level scheduling). Each row is at a step of its own, so all layers must be
`rows_apart`, see `remixer_tf.layers.Sublayer`.
"""

import functools
import inspect
from typing import Any, NamedTuple

import keras
from keras import ops

from remixer_tf.decoding.beam_search import beam_search
from remixer_tf.decoding.greedy import greedy_decode
from remixer_tf.decoding.sampling import sample
from remixer_tf.decoding.search import FIRST_CACHE_LENGTH, TURN, places_of
from remixer_tf.errors import UserError
from remixer_tf.layers.base import rows_apart


class Rows(NamedTuple):
    """Where the answers of a batch are.

    Attributes:
        batch: dictionary of tensors `[batch, ..]`, as `decode` takes it.
        context: the decoder's `Context`.
        now: the state of `decode`, a tuple of nested tensors: `step`, int32 `[batch]`,
            the position that each row writes next, `hypotheses`, and others.
    """

    batch: Any
    context: Any
    now: Any


class Turn:
    """A part of a search: it begins rows, or writes some tokens of them.

    Args:
        length: int, positions that the rows' cache has room for, see `room`.
        rows: `Rows` to go on with; None begins the batch's rows, and reads their
            prompts.
        steps: int32 scalar, tokens to write at most.
        running: int32 scalar: the turn ends when no more rows than these are running,
            or when one has no room in its cache.

    Attributes:
        rows: the `Rows` after the turn.
    """

    def __init__(self, length, rows=None, steps=0, running=0):
        self.length, self.rows = length, rows
        self.steps, self.running = steps, running

    def take(self, model, batch, writing):
        """Takes the turn, in `decode`. Returns the `Hypotheses` and the last state."""
        batch = {name: x for name, x in batch.items() if name != TURN}
        if writing.search.branches:
            raise UserError("Hypotheses that branch keep in step with other rows.")
        if not rows_apart(model):
            raise UserError("A layer has all rows in step, see Sublayer.rows_apart.")
        if self.rows is None:
            context, cache = model.start_decoding(
                batch, self.length, writing.search.beams
            )
            now = writing.start_apart(context, cache, self.length)
        else:
            context, now = self.rows.context, self.rows.now
            rest = self.length, self.steps, self.running
            now = writing.write_apart(context, now, *rest)
        self.rows = Rows(batch, context, now)
        return now.hypotheses, now.state


def begin(search, model, batch, max_length, length):
    """Begins to answer a batch: its `Rows`; nothing is written.

    Args:
        search: `(model, batch, max_length) -> Decoded`, one of `remixer_tf.decoding`.
        model, batch, max_length: what it takes.
        length: int, see `Turn`.

    Raises:
        ValueError: rows of the search or of the model keep in step. A search of a
            user's own may decode twice, or change the batch: its rows do too.
    """
    if inspect.unwrap(_without_arguments(search)) not in _SEARCHES:
        raise UserError("A search that is not remixer_tf.decoding's takes whole rows.")
    turn = Turn(length)
    search(model, {**batch, TURN: turn}, max_length)
    return turn.rows


def write(search, model, rows, max_length, length, steps, running):
    """Writes some tokens: a `Decoded` of all rows, finished or not, and the `Rows`.

    For arguments see `begin` and `Turn`.
    """
    turn = Turn(length, rows, steps, running)
    decoded = search(model, {**rows.batch, TURN: turn}, max_length)
    return decoded, turn.rows


def merge(parts, index, live):
    """Makes one batch of rows of others.

    Args:
        parts: list of `Rows`. Only their numbers of rows differ.
        index: int32 `[batch]`, the rows to take, which count through all parts.
        live: bool `[batch]`, False where a row only fills the batch: it has ended.
    """
    size = ops.shape(parts[0].now.last)[0]

    def joined(*xs):
        if xs[0] is None:
            return None
        places = places_of(index, size, xs[0])
        if places is None:
            return xs[0]
        x = ops.concatenate(xs, axis=0) if len(xs) > 1 else xs[0]
        return ops.take(x, places, axis=0)

    rows = keras.tree.map_structure(joined, *parts)
    hypotheses = rows.now.hypotheses
    running = ops.logical_and(hypotheses.running, live[:, None])
    hypotheses = hypotheses._replace(running=running)
    return rows._replace(now=rows.now._replace(hypotheses=hypotheses))


def fit(model, rows, width, length):
    """Pads or cuts `Rows`.

    Args:
        model: their model.
        rows: the `Rows`.
        width: int, tokens of the questions: behind them is only padding.
        length: int, positions of the cache, see `Turn`: at least those written.
    """
    name = "encoder_input_tokens"
    batch = {**rows.batch, name: _fit(rows.batch[name], width)}
    context = rows.context
    if context.encoded is not None:
        names = ("encoded", "encoded_mask", "encoded_segment_ids")
        fitted = {
            name: _fit(x, width)
            for name in names
            if (x := getattr(context, name)) is not None
        }
        context = context._replace(**fitted)
    cache = model.grow_cache(context, rows.now.cache, length)
    return Rows(batch, context, rows.now._replace(cache=cache))


def room(positions, longest):
    """The length of a cache for so many positions of `longest`, an int.

    They are those of `decode`: from 64 on, four times as many.
    """
    length = FIRST_CACHE_LENGTH
    while length < positions:
        length *= 4
    return min(length, longest)


_SEARCHES = [inspect.unwrap(f) for f in (beam_search, greedy_decode, sample)]


def _without_arguments(search):
    while isinstance(search, functools.partial):
        search = search.func
    return search


def _fit(x, length):
    """Pads or cuts the second axis."""
    x = x[:, :length]
    pads = [[0, 0], [0, length - ops.shape(x)[1]], *[[0, 0]] * (len(x.shape) - 2)]
    return ops.reshape(ops.pad(x, pads), (-1, length, *x.shape[2:]))  # a known shape
