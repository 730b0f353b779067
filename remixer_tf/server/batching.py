"""Computes requests that arrive together in one batch, in a thread of the model."""

import asyncio
import collections
import queue
import threading
import time
from typing import Any, NamedTuple

from remixer_tf.server.signatures import how_many, padded

_AHEAD = 4  # times the largest batch, of rows that are sorted by length


class Thread:
    """A thread that calls functions for coroutines, one after the other.

    It ends with the process, whatever it does then.

    Attributes:
        busy: bool, whether it is calling a function.
    """

    def __init__(self, name):
        self._calls, self.busy = queue.SimpleQueue(), False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()
        self.is_alive = self._thread.is_alive

    async def call(self, function, *arguments):
        """Returns what a function returns, called in the thread."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._calls.put((loop, future, function, arguments))
        return await future

    def stop(self, last=lambda: None):
        """Ends the thread when it has made the calls that wait, and then `last()`."""
        self._calls.put(last)

    def _work(self):
        while not callable(call := self._calls.get()):
            loop, future, function, arguments = call
            result = error = None
            self.busy = True
            try:
                result = function(*arguments)
            except Exception as raised:
                error = raised
            self.busy = False
            try:
                loop.call_soon_threadsafe(finish, future, result, error)
            except RuntimeError:  # The loop has ended, and with it who asked.
                pass
            # Nothing is held while it waits for the next call.
            del call, future, function, arguments, result, error
        call()


def finish(future, result, error):
    """Gives a future a result, or an error that is not None."""
    if future.done():  # Nobody waits any more.
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class _Row(NamedTuple):
    """A row that waits."""

    signature: Any
    group: Any
    values: dict
    length: int
    future: asyncio.Future
    request: object


class Batcher:
    """Asks a model's signatures, for many requests at once.

    A request alone is computed at once. While one batch is computed, rows wait; then
    the oldest is computed with those of its group that are about as long. If the last
    batch had several requests, their clients are expected again: a batch waits for as
    many, `wait` seconds at most.

    Args:
        thread: the `Thread` that computes.
        wait: float, in seconds.
        observe: function of the number of rows of each batch, its seconds, and the
            error of what was computed again in halves, or None.
    """

    def __init__(self, thread, wait=0.003, observe=lambda rows, seconds, error: 0):
        self._thread, self._wait, self._observe = thread, wait, observe
        self._rows, self._task = collections.deque(), None
        self._arrived = asyncio.Event()
        self._expected = 1  # requests

    def waiting(self):
        """Returns how many rows wait."""
        return sum(not row.future.done() for row in self._rows)

    async def ask(self, signature, rows):
        """Returns a signature's answers to rows, a list of dictionaries.

        If the task that asks is cancelled, rows that still wait are left out.
        """
        loop = asyncio.get_running_loop()
        futures, request = [loop.create_future() for _ in rows], object()
        for values, future in zip(rows, futures, strict=True):
            length = sum(len(x) for x in values.values() if isinstance(x, bytes))
            group = signature.group(values)
            row = _Row(signature, group, values, length, future, request)
            self._rows.append(row)
        self._arrived.set()
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())
        try:
            return await asyncio.gather(*futures)
        finally:
            for future in futures:
                future.cancel()

    async def _work(self):
        while self._rows:
            await self._gather()
            rows = self._take()
            if not rows:
                continue
            start = time.monotonic()
            try:
                found, failure = await self._thread.call(_compute, rows)
            except Exception as error:
                found, failure = [error] * len(rows), None
            seconds = time.monotonic() - start
            for row, answer in zip(rows, found, strict=True):
                failed = isinstance(answer, Exception)
                finish(row.future, answer, answer if failed else None)
            self._expected = _requests(rows)
            self._observe(len(rows), seconds, failure)

    async def _gather(self):
        """Waits for as many requests as the last batch had, a moment at most."""
        end = time.monotonic() + self._wait
        while 1 <= _requests(self._rows) < self._expected:
            self._arrived.clear()
            try:
                async with asyncio.timeout(max(0, end - time.monotonic())):
                    await self._arrived.wait()
            except TimeoutError:
                return

    def _take(self):
        """Removes the rows of the next batch, and returns them."""
        self._rows = collections.deque(r for r in self._rows if not r.future.done())
        if not self._rows:
            return []
        oldest, sizes = self._rows[0], self._rows[0].signature.sizes
        same = [
            row
            for row in self._rows
            if row.signature is oldest.signature and row.group == oldest.group
        ][: _AHEAD * sizes[-1]]
        number = how_many(sizes, len(same))
        same.sort(key=lambda row: row.length)
        place = next(i for i, row in enumerate(same) if row is oldest)
        start = min(max(0, place - number // 2), len(same) - number)
        taken = same[start : start + number]
        chosen = {id(row) for row in taken}
        self._rows = collections.deque(r for r in self._rows if id(r) not in chosen)
        return taken


def _requests(rows):
    """How many requests rows belong to whose clients are there."""
    return len({row.request for row in rows if not row.future.cancelled()})


def _compute(rows):
    """Computes rows of a signature together; for returns see `in_halves`."""
    signature = rows[0].signature

    def answers(rows):
        values = padded(signature, [row.values for row in rows])
        return signature.compute(values)[: len(rows)]

    return in_halves(answers, rows)


def in_halves(function, rows):
    """Returns a function's answers to rows, which it answers together if it can.

    If that fails it answers each half: a few rows that fail cost the others little. A
    row that also fails alone has the exception in place of its answer.

    Returns:
        the list of answers, and the exception of the rows together, None if there was
        none or there is one row.
    """
    try:
        return function(rows), None
    except Exception as error:
        if len(rows) == 1:
            return [error], None
        failure = error
    half = len(rows) // 2
    answers, _ = in_halves(function, rows[:half])
    others, _ = in_halves(function, rows[half:])
    return answers + others, failure
