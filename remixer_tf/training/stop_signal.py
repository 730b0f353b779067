"""Ends a run after a signal, without losing steps."""

import contextlib
import signal
import threading

from remixer_tf import console

_KEPT = "nothing is lost. Run the same command to resume."
PREEMPTED = 75  # exit code; EX_TEMPFAIL of sysexits.h: run the same command again


class StopSignal:
    """Ends a run at SIGTERM, as from a preempted machine, and at SIGINT (Ctrl-C).

    SIGHUP, which comes when a terminal is closed, does as SIGTERM does, unless it is
    ignored (`nohup`). The run ends at once if no steps are lost. Otherwise the loop
    saves first. Processes that train together end at the same step, so that none waits
    for another: also at the start they only note a signal. Use it as a context manager
    around the run.

    Attributes:
        alone: bool, whether this process trains without others.
        received: int, the signal's number, or None.
    """

    def __init__(self, alone=True):
        self.alone = alone
        self.received = None
        self._held = not alone
        self._previous = {}
        self._message = None

    def __enter__(self):
        # Python allows handlers in the main thread only.
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
            if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
                numbers.remove(signal.SIGHUP)
            for number in numbers:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception):
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._message:
            console.say(self._message)

    def came_alone(self):
        """Whether a signal came, and no other process trains with this one."""
        return self.alone and self.received is not None

    @contextlib.contextmanager
    def held(self):
        """Only notes signals inside the block, whose steps are not saved yet."""
        self._held = True
        try:
            yield
        finally:
            self._held = not self.alone

    @contextlib.contextmanager
    def let_through(self):
        """Inside a `held` block: a signal ends the run at once, if it is `alone`."""
        if not self.alone:
            yield
            return
        self._held = False
        try:
            if self.received:
                self.leave(_KEPT)
            yield
        finally:
            self._held = True

    def leave(self, what):
        """Raises KeyboardInterrupt after SIGINT, else SystemExit, with a message.

        `received` is None where another process got the signal.
        """
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt(f"Ctrl-C: {what}")
        name = self.received and signal.Signals(self.received).name
        self._message = f"{name or 'A signal came to another process'}: {what}"
        raise SystemExit(PREEMPTED)

    def _note(self, number, frame):
        again = self.received == number == signal.SIGINT
        self.received = number
        if again:
            self.leave("it came twice: steps since the last checkpoint are lost.")
        if not self._held:
            self.leave(_KEPT)
