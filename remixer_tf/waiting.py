"""Waiting for data: a message reports it, and a signal ends it.

TensorFlow's own wait for a batch hides signals from Python. So a thread waits for the
batch, and the caller waits for the thread.
"""

import threading

from remixer_tf import console

_SILENCE = 10  # seconds until a wait is reported
_PERIOD = 1  # seconds between two questions whether it ends


class Waiter:
    """Calls a function again and again, in one thread that no exit waits for.

    Use it as a context manager. `ask` begins a call, `answer` waits for its result, and
    calling the object does both. After 10 s a message reports the wait, and `leave`,
    unless it is None, is called each second. It may raise an error, which ends the wait
    and the use of the object.
    """

    def __init__(self, function, leave=None):
        self._function, self._leave = function, leave
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

    def __call__(self, what):
        """Returns what the function returns, or raises its error."""
        self.ask()
        return self.answer(what)

    def ask(self):
        """Begins a call."""
        self._asked.release()

    def answer(self, what):
        """Returns the result of the call that `ask` began; waits for `what`, a str."""
        if not self._answered.acquire(timeout=_SILENCE):
            console.say(f"waiting for {what}")
            while not self._answered.acquire(timeout=_PERIOD):
                if self._leave is not None:
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


def each(iterator, what):
    """Yields what an iterator gives, and waits as `Waiter` does for `what`, a str."""
    end = object()
    with Waiter(lambda: next(iterator, end)) as read:
        while (element := read(what)) is not end:
            yield element
