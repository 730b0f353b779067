"""Answers questions by a search whose rows come and go: continuous batching.

A question need not wait until others have their answers. It takes the place of a row
that has ended (Yu et al. 2022, "Orca", section 3.1).
"""

import asyncio
import collections
import dataclasses
import time
from typing import Any

import numpy as np
import tensorflow as tf

from remixer_tf.loaded.searches import Pieces
from remixer_tf.server.batching import finish

# Tokens of a turn at most: meanwhile no question is begun, and no piece is sent.
_STEPS, _STREAMED_STEPS = 16, 4
_ENDED = 8  # A turn ends when one row of so many has ended.


@dataclasses.dataclass(eq=False)
class _Row:
    """A question.

    Attributes:
        text: bytes.
        settings: dictionary of the inputs of its search.
        future: of its answer.
        pieces: an `asyncio.Queue` of pieces and tokens, see `Writer.ask`; or None.
        cut: its `Pieces`.
        input_tokens, trimmed: of the text as the model reads it.
    """

    text: bytes
    settings: dict
    future: asyncio.Future
    pieces: Any = None
    cut: Any = None
    input_tokens: int = 0
    trimmed: Any = None


class Writer:
    """Answers the questions of many requests by one `ContinuousSearch`.

    All but the constructor and `answer` is called in the event loop.

    Args:
        search: the `ContinuousSearch`.
        answerer: its `TextToText`.
        defaults: dictionary of NumPy's numbers, inputs of its graphs.
        sizes: tuple of ints, rows that are written together. They rise.
        thread: the `Thread` that computes.
        observe: function of the number of rows of each turn, and of its seconds.
    """

    def __init__(self, search, answerer, defaults, sizes, thread):
        self.search, self._answerer, self._defaults = search, answerer, defaults
        self._sizes, self._thread = sizes, thread
        self.observe = lambda rows, seconds: None
        self._waiting, self._task = collections.deque(), None
        self._state, self._rows = None, []  # of the thread

    def waiting(self):
        """Returns how many questions wait."""
        return sum(not row.future.done() for row in self._waiting)

    def is_writing(self):
        """Returns whether questions wait or are being answered."""
        return self._task is not None and not self._task.done()

    def ask(self, text, settings, pieces=None):
        """Returns the future of an answer, a dictionary.

        Args:
            text: bytes.
            settings: dictionary of inputs in place of the defaults.
            pieces: an `asyncio.Queue` that gets the answer as it is written: pairs of
                a piece, str, and all tokens until then, and None at the end; or None.
        """
        loop = asyncio.get_running_loop()
        row = _Row(text, settings, loop.create_future(), pieces)
        row.cut = Pieces(self._answerer)
        self._waiting.append(row)
        if not self.is_writing():
            self._task = loop.create_task(self._work())
        return row.future

    async def _work(self):
        while True:
            self._waiting = collections.deque(
                row for row in self._waiting if not row.future.done()
            )
            writing = [row for row in self._rows if row and not row.future.done()]
            free = self._sizes[-1] - len(writing)
            new = [self._waiting.popleft() for _ in range(min(free, self.waiting()))]
            if not writing and not new:
                self._state, self._rows = None, []
                return
            start = time.monotonic()
            for row, found in await self._thread.call(self._turn, new, writing):
                if isinstance(found, tuple):
                    row.pieces.put_nowait(found)
                    continue
                failed = isinstance(found, Exception)
                finish(row.future, found, found if failed else None)
                if row.pieces is not None:
                    row.pieces.put_nowait(None)
            self.observe(len(writing) + len(new), time.monotonic() - start)

    def _turn(self, new, writing):
        """Begins new rows, and writes some tokens of all. In the thread.

        Returns a list of pairs. Each is a row and its answer, or the exception that it
        raised; and for a stream a row, and a piece with all tokens until then.
        """
        try:
            self._arrange(new, writing)
            return self._write(len(writing) + len(new))
        except Exception:
            self._state, self._rows = None, []
        found = []
        for row in writing + new:
            answer = self._alone(row)
            if row.pieces is not None and not isinstance(answer, Exception):
                ids = answer["tokens"]
                found.append((row, (row.cut.next(ids, True), ids)))
            found.append((row, answer))
        return found

    def _alone(self, row):
        """Answers a row alone. Returns the answer, or what the row raises."""
        try:
            return self.answer(row.text, row.settings)
        except Exception as error:
            return error

    def answer(self, text, settings):
        """Answers a question at once, in the thread."""
        row = _Row(text, settings, None)
        tokens = self._read([row])
        state = self._begun([row], tokens, self._shape([row], self._first(tokens)))
        while True:
            decoded, state = self.search.write(state, 2**30, 0)
            if not state.running[0]:
                return self._answers([row], decoded)[0]
            state = self.search.fit(state, self._shape([row], state.steps))

    def _read(self, rows):
        """The ids of new rows' texts, int32 `[rows, length]`."""
        texts = tf.constant([row.text for row in rows])
        tokens, trimmed = self._answerer.tokens_of(texts)
        for row, ids, cut in zip(rows, tokens, trimmed.numpy(), strict=True):
            row.input_tokens, row.trimmed = int(np.count_nonzero(ids)), bool(cut)
        return tokens

    def _first(self, tokens):
        """The first positions that are written of ids."""
        prompts = np.count_nonzero(tokens, axis=1)
        return prompts * self._answerer.tokens.language_model

    def _shape(self, rows, steps):
        """The shape of rows of which these positions are written next."""
        most = max(row.input_tokens for row in rows)
        return self.search.shape(most, int(max(steps)) + 1)

    def _begun(self, rows, tokens, shape):
        """The `State` of new rows."""
        settings = {
            name: np.stack([row.settings.get(name, default) for row in rows])
            for name, default in self._defaults.items()
        }
        return self.search.begin(shape, tokens, settings)

    def _arrange(self, new, writing):
        """Makes the state of these rows, in as few places as there may be."""
        rows = writing + new
        size = next(size for size in self._sizes if size >= len(rows))
        kept = [i for i, row in enumerate(self._rows) if row in writing]
        steps = self._state.steps[kept].tolist() if kept else []
        if new:
            tokens = self._read(new)
            steps += self._first(tokens).tolist()
        shape = self._shape(rows, steps)
        parts = [self.search.fit(self._state, shape)] if kept else []
        if new:
            parts.append(self._begun(new, tokens, shape))
        index = kept + [len(self._rows) * bool(kept) + i for i in range(len(new))]
        left = any(row and row not in writing for row in self._rows)
        self._state = parts[0]
        if new or left or size != self._state.size:
            fill = size - len(index)
            live = [True] * len(index) + [False] * fill
            self._state = self.search.merge(parts, index + index[:1] * fill, live)
            self._rows = [self._rows[i] for i in kept] + new + [None] * fill

    def _write(self, number):
        """Writes some tokens; for returns see `_turn`."""
        streams = any(row and row.pieces is not None for row in self._rows)
        steps = _STREAMED_STEPS if streams else _STEPS
        end = number - max(1, number // _ENDED)
        decoded, self._state = self.search.write(self._state, steps, end)
        running = self._state.running
        ended = [i for i, row in enumerate(self._rows) if row and not running[i]]
        rows = [self._rows[i] for i in ended]
        found = []
        for row, ids in zip(self._rows, decoded.tokens, strict=True):
            if row and row.pieces is not None:
                ids = ids[ids > 0]
                found.append((row, (row.cut.next(ids, row in rows), ids.tolist())))
        if ended:
            of_ended = tf.nest.map_structure(lambda x: x[ended], decoded)
            found += zip(rows, self._answers(rows, of_ended), strict=True)
        for i in ended:
            self._rows[i] = None
        return found

    def _answers(self, rows, decoded):
        """Answers of rows that have ended, dictionaries."""
        trimmed = tf.constant([row.trimmed for row in rows])
        found = answers_of(self._answerer, decoded, trimmed)
        for answer, row in zip(found, rows, strict=True):
            answer["input_tokens"] = row.input_tokens
        return found


def answers_of(answerer, decoded, trimmed):
    """Returns a dictionary for each row of a `Decoded` of NumPy arrays."""
    tensors = tf.nest.map_structure(tf.constant, decoded)
    texts = answerer.written(tensors, trimmed)
    texts = {name: value.numpy() for name, value in texts.items()}
    return [
        {name: value[i] for name, value in texts.items()}
        | {"tokens": row[row > 0].tolist()}
        for i, row in enumerate(decoded.tokens)
    ]
