"""Waiting for data: a message reports it, and a signal ends it.

TensorFlow's own wait for a batch hides signals from Python. So a thread waits for the
batch, and the caller waits for the thread.
"""

import threading
from concurrent.futures import Future

from remixer_tf import console

_SILENCE = 10  # seconds until a wait is reported
_PERIOD = 1  # seconds between two questions whether it ends


def started(function, *args):
    """Returns the `Future` of a call in a thread that no exit waits for."""
    future = Future()

    def run():
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def awaited(future, what):
    """Returns the result of a `Future`; tells after 10 s that it waits for `what`."""
    try:
        return future.result(_SILENCE)
    except TimeoutError:
        if not future.done():
            console.say(f"waiting for {what}")
        return future.result()


class Waiter:
    """Calls a function again and again, in one thread that no exit waits for.

    Use it as a context manager. After 10 s a message reports a wait for `what`, and
    `leave` is called each second. It may raise an error, which ends the wait and the
    use of the object.
    """

    def __init__(self, function, what, leave):
        self._function, self._what, self._leave = function, what, leave
        # Two locks that the threads hand to each other cost half as much as a queue.
        self._asked, self._answered = threading.Lock(), threading.Lock()
        self._ended = False

    def __enter__(self):
        self._asked.acquire()
        self._answered.acquire()
        threading.Thread(target=self._run, daemon=True).start()
        return self

    def __exit__(self, *exception):
        self._ended = True
        if self._asked.locked():  # The thread waits, or is in a call.
            self._asked.release()

    def __call__(self):
        """Returns what the function returns, or raises its error."""
        self._asked.release()
        if not self._answered.acquire(timeout=_SILENCE):
            console.say(f"waiting for {self._what}")
            while not self._answered.acquire(timeout=_PERIOD):
                self._leave()
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self):
        while self._asked.acquire() and not self._ended:
            self._result = self._error = None
            try:
                self._result = self._function()
            except BaseException as error:
                self._error = error
            self._answered.release()
