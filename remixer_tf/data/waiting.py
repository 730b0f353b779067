"""Waiting for data: a message reports it, and a signal ends it."""

import threading
from concurrent.futures import Future

from remixer_tf import console

_SILENCE = 10  # seconds until a wait is reported


def started(function, *args):
    """Returns the `Future` of a call in a thread that no exit waits for.

    The wait of TensorFlow for a batch hides signals from Python. The wait for a
    `Future` does not.
    """
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
