"""Answers questions by a search whose rows come and go: continuous batching.

A question need not wait until others have their answers. It takes the place of a row
that has ended (Yu et al. 2022, "Orca", section 3.1).
"""

import asyncio
import collections
import dataclasses
import time
from typing import Any

import tensorflow as tf

from remixer_tf.loaded.searches import Pieces
from remixer_tf.server.batching import finish, in_halves
from remixer_tf.serving.places import Places, Question

# Tokens of a turn at most: meanwhile no question is begun, and no piece is sent.
_STEPS, _STREAMED_STEPS = 16, 4


@dataclasses.dataclass(eq=False)
class _Asked(Question):
    """A question with the client that waits for its answer.

    Attributes:
        text: bytes.
        future: of its answer.
        pieces: an `asyncio.Queue` of pieces and tokens, see `Writer.ask`; or None.
        cut: its `Pieces`.
        trimmed: bool, whether the model reads only a part of the text.
    """

    text: bytes = b""
    future: Any = None
    pieces: Any = None
    cut: Any = None
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
        observe: see `Batcher`; a turn is a batch.
    """

    def __init__(self, search, answerer, defaults, sizes, thread):
        self.search, self._answerer, self._defaults = search, answerer, defaults
        self._most, self._thread = sizes[-1], thread
        self.observe = lambda rows, seconds, error: None
        self._waiting, self._task = collections.deque(), None
        self._places = Places(search, sizes)  # of the thread

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
        row = self._asked(text, settings)
        row.future, row.pieces = loop.create_future(), pieces
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
            writing = [
                row for row in self._places.questions if row and not row.future.done()
            ]
            free = self._most - len(writing)
            new = [self._waiting.popleft() for _ in range(min(free, self.waiting()))]
            if not writing and not new:
                self._places.clear()
                return
            start = time.monotonic()
            pairs, failure = await self._thread.call(self._turn, new, writing)
            for row, found in pairs:
                if isinstance(found, tuple):
                    row.pieces.put_nowait(found)
                    continue
                failed = isinstance(found, Exception)
                finish(row.future, found, found if failed else None)
                if row.pieces is not None:
                    row.pieces.put_nowait(None)
            number = len(writing) + len(new)
            self.observe(number, time.monotonic() - start, failure)

    def _turn(self, new, writing):
        """Begins new rows, and writes some tokens of all. In the thread.

        Returns a list of pairs. Each is a row and its answer, or the exception that it
        raised; and for a stream a row, and a piece with all tokens until then. And the
        exception of all rows together, or None.
        """
        try:
            if new:
                self._read(new)
            self._places.arrange(writing, new)
            return self._write(), None
        except Exception as error:
            rows, failure = writing + new, error
        found, (answers, _) = [], in_halves(self._whole, rows)
        for row, answer in zip(rows, answers, strict=True):
            if row.pieces is not None and not isinstance(answer, Exception):
                ids = answer["tokens"]
                found.append((row, (row.cut.next(ids, True), ids)))
            found.append((row, answer))
        return found, failure

    def _whole(self, rows):
        """Returns the whole answers to rows, a list of dictionaries."""
        self._places.clear()
        self._read(rows)
        writing, new, found = [], rows, {}
        while len(found) < len(rows):
            self._places.arrange(writing, new)
            found |= self._ended(*self._places.write(2**30))
            writing, new = [row for row in self._places.questions if row], []
        return [found[row] for row in rows]

    def answer(self, text, settings):
        """Answers a question at once, in the thread."""
        return self._whole([self._asked(text, settings)])[0]

    def _asked(self, text, settings):
        inputs = {name: settings.get(name, x) for name, x in self._defaults.items()}
        return _Asked(None, inputs, text)

    def _read(self, rows):
        """Reads the texts of new rows."""
        texts = tf.constant([row.text for row in rows])
        tokens, trimmed = self._answerer.tokens_of(texts)
        for row, ids, cut in zip(rows, tokens, trimmed.numpy(), strict=True):
            row.tokens, row.trimmed = ids, bool(cut)

    def _write(self):
        """Writes some tokens; for returns see `_turn`."""
        streams = {
            i: row
            for i, row in enumerate(self._places.questions)
            if row and row.pieces is not None
        }
        decoded, ended = self._places.write(_STREAMED_STEPS if streams else _STEPS)
        found = []
        for i, row in streams.items():
            ids = decoded.tokens[i]
            ids = ids[ids > 0]
            found.append((row, (row.cut.next(ids, i in ended), ids.tolist())))
        return [*found, *self._ended(decoded, ended).items()]

    def _ended(self, decoded, ended):
        """Takes rows that have ended out of their places: a dictionary of answers."""
        if not ended:
            return {}
        rows = self._places.leave(ended)
        of_ended = tf.nest.map_structure(lambda x: x[ended], decoded)
        return dict(zip(rows, self._answers(rows, of_ended), strict=True))

    def _answers(self, rows, decoded):
        """Answers of rows that have ended, dictionaries."""
        trimmed = tf.constant([row.trimmed for row in rows])
        found = answers_of(self._answerer, decoded, trimmed)
        for answer, row in zip(found, rows, strict=True):
            answer["input_tokens"] = row.length
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
