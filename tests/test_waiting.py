"""A source of data that is slow or hangs: the user hears of it, and may end it."""

import signal
import threading

import pytest
import tensorflow as tf

from remixer_tf import waiting
from remixer_tf.waiting import Waiter, each


class Ended(Exception):
    pass


@pytest.fixture
def alarm():
    """Sets an alarm: a signal comes after 0.2 s, and its handler raises `Ended`."""

    def end(number, frame):
        raise Ended

    before = signal.signal(signal.SIGALRM, end)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_the_wait_for_a_source_that_hangs(alarm, monkeypatch, capsys):
    monkeypatch.setattr(waiting, "_SILENCE", 0.01)
    arrives = threading.Event()

    def rows():
        arrives.wait()
        yield 1

    data = iter(tf.data.Dataset.from_generator(rows, output_types=tf.int32))
    try:
        with pytest.raises(Ended):
            alarm()
            next(each(data, "the first batch"))
    finally:
        arrives.set()
    assert capsys.readouterr().out == "waiting for the first batch\n"


def test_results_and_errors_are_those_of_the_calls():
    assert [*each(iter([3, None, 2]), "nothing")] == [3, None, 2]
    with Waiter(lambda: 3) as waiter:
        waiter.ask()
        assert waiter.answer("nothing") == 3
    with pytest.raises(TimeoutError, match="its own"):
        [*each(map(_raise, [TimeoutError("its own")]), "nothing")]


def test_one_thread_gives_all_results_and_errors_in_turn():
    numbers, threads = iter(range(2)), set()

    def read():
        threads.add(threading.current_thread())
        return next(numbers)

    with Waiter(read) as waiter:
        assert [waiter("nothing"), waiter("nothing")] == [0, 1]
        with pytest.raises(StopIteration):
            waiter("nothing")
    (thread,) = threads
    thread.join(10)
    assert not thread.is_alive()


def test_a_wait_may_be_left(monkeypatch, capsys):
    monkeypatch.setattr(waiting, "_SILENCE", 0.01)
    monkeypatch.setattr(waiting, "_PERIOD", 0.01)
    arrives = threading.Event()

    def leave():
        raise Ended

    with pytest.raises(Ended), Waiter(arrives.wait, leave) as waiter:
        waiter("what hangs")
    arrives.set()
    assert capsys.readouterr().out == "waiting for what hangs\n"


def _raise(error):
    raise error
