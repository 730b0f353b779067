"""A hook that sends the lines of metrics.jsonl to the loggers of a run."""

import json
import math
import os
import time

import tensorflow as tf

from remixer_tf.checkpoints.damage import first_line
from remixer_tf.checkpoints.whole_folder import read_json, write_json
from remixer_tf.errors import UserError
from remixer_tf.training.session import Session

_PATIENCE = 10  # seconds for which lines are sent at once, while training waits
_MOST_WAITING = 10_000  # lines of a service
_SENT_AGAIN = "gets all lines of metrics.jsonl again"


class Sending:
    """Sends each new line of metrics.jsonl, as a context manager around the loop.

    `loggers.json` in the run's folder remembers the run of each service, how many lines
    of metrics.jsonl it was given and which of them it has not taken, for a process that
    resumes. Host 0 sends to the loggers of `Launch.watching`; see `_Service` for lines
    that a service does not take. `evaluating`, an `Evaluating`, writes lines too. The
    hyperparameters are a dictionary of numbers and strings.
    """

    def __init__(self, session: Session, evaluating, hyperparameters):
        self._session, self._evaluating = session, evaluating
        self._hyperparameters = hyperparameters
        self._services = []
        self._position = 0  # in metrics.jsonl

    def __enter__(self):
        if self._session.engine.host.index == 0:
            with self._session.speed.paused():
                self._start()
        return self

    def __exit__(self, kind, *exception):
        stopped = kind in (SystemExit, KeyboardInterrupt)
        status = "finished" if kind is None else "stopped" if stopped else "failed"
        try:
            self._send(last=True)
        except (OSError, tf.errors.OpError) as error:  # Perhaps the folder has gone.
            self._warn(f"the loggers lack the last lines: {first_line(error)}")
        for service in self._services:
            service.finish(status)

    def after_call(self, step, batch, metrics):
        """Sends the lines that other hooks have written after this call."""
        schedule = self._session.schedule
        if schedule.due(step, schedule.log_period) or self._evaluating.due(step):
            with self._session.speed.paused():
                self._send()

    def _start(self):
        state = read_json(self._path("loggers.json"))
        if not isinstance(state, dict):
            if tf.io.gfile.exists(self._path("loggers.json")):
                self._warn(f"loggers.json is damaged: each logger {_SENT_AGAIN}")
            state = {}
        for logger in self._session.launch.watching.loggers:
            service = _Service(logger, self._warn)
            known = state.get(service.name, {})
            try:
                service.start(self._session.model_dir, known, self._hyperparameters)
            except Exception as error:
                for started in self._services:
                    started.finish("failed")
                reason = str(error).rstrip(".")
                raise UserError(
                    f"{service.name} cannot start: {reason}. Correct its settings, or "
                    "leave it out of Watching.loggers."
                ) from error
            self._services.append(service)
        self._send()

    def _send(self, last=False):
        """Sends the new lines to all services, see `_Service.send`."""
        if not self._services:
            return
        lines = self._read()
        for service in self._services:
            service.add(lines)
            service.send(last)
        state = {service.name: service.state() for service in self._services}
        write_json(self._path("loggers.json"), state)

    def _read(self):
        """Returns the new whole lines of metrics.jsonl, a list of bytes."""
        if not tf.io.gfile.exists(self._path("metrics.jsonl")):
            return []
        with tf.io.gfile.GFile(self._path("metrics.jsonl"), "rb") as file:
            file.seek(self._position)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.splitlines()

    def _path(self, name):
        return os.path.join(self._session.model_dir, name)

    def _warn(self, message):
        self._session.progress.message(f"warning: {message}")


class _Service:
    """A logger, and the lines of metrics.jsonl that it has not taken.

    While a service takes nothing, its lines wait: the newest `_MOST_WAITING` of them. A
    line that it refuses while it takes others is sent again when the run ends or
    resumes. A message says so the first time, and one at the end says how many lines
    the service lacks. `warn` shows a message.
    """

    def __init__(self, logger, warn):
        self.name = type(logger).__name__
        self._logger, self._warn = logger, warn
        self._count = 0  # lines that it was given
        self._waiting = {}  # {index: line that it has not taken}, in order
        self._refused = set()  # indices of those that are not sent again before the end
        self._left_out = 0  # lines that wait no longer
        self._error = None  # the last one, a str
        self._warned = set()  # kinds of warning

    def start(self, model_dir, known, hyperparameters):
        """Starts the run in the service; `known` is its `state` of before, or {}.

        A state that was damaged counts for nothing but the run's id: all lines are sent
        again.
        """
        known = known if isinstance(known, dict) else {"lines": None}
        run_id = known.get("run_id")
        run_id = run_id if isinstance(run_id, str) else None
        self._run_id = self._logger.start(model_dir, run_id, hyperparameters)
        missing = known.get("missing", [])
        counts = known.get("lines", 0), known.get("left_out", 0)
        if not isinstance(missing, list) or not all(
            type(x) is int and x >= 0 for x in (*counts, *missing)
        ):
            self._warn(f"loggers.json is damaged: {self.name} {_SENT_AGAIN}")
            counts, missing = (0, 0), []
        lines, self._left_out = counts
        self._known = lines, set(missing)

    def state(self):
        """Returns a dictionary for JSON, with which a later process resumes.

        {"run_id": str, "lines": number of lines that it was given, "missing": [index of
        a line among them that waits, ...], "left_out": number of those that do not}
        """
        return {
            "run_id": self._run_id,
            "lines": self._count,
            "missing": list(self._waiting),
            "left_out": self._left_out,
        }

    def add(self, lines):
        """Adds the next lines of the file, without those of earlier processes."""
        known, missing = self._known
        for index, line in enumerate(lines, self._count):
            if index >= known or index in missing:
                self._waiting[index] = line
        # After a resume from an earlier checkpoint the file may have fewer lines than
        # were known: the next ones are new.
        self._known = 0, set()
        self._count += len(lines)

    def send(self, last=False):
        """Sends the lines that wait, for `_PATIENCE` seconds.

        If the service takes neither the first two lines nor the newest one, the others
        wait for the next call: a service that is away costs three attempts. `last`
        sends all of them, those that were refused too, and gives up `_PATIENCE` seconds
        after the first failure.
        """
        end = math.inf if last else time.monotonic() + _PATIENCE
        indices = [i for i in self._waiting if last or i not in self._refused]
        if not indices or not (last or self._answers(indices, end)):
            return
        self._warned.discard("away")
        for index in indices:
            if time.monotonic() > end:
                break
            if index in self._waiting and not self._takes(index):
                self._refused.add(index)
                end = min(end, time.monotonic() + _PATIENCE)
        else:  # It was offered all of them.
            self._leave_out()
        if self._refused and not last:
            what = "does not take some lines, and gets them again later"
            self._say_once("refuses", f"{self.name} {what}")

    def _answers(self, indices, end):
        """Sends some lines until one is taken, and returns whether one was."""
        for index in dict.fromkeys([*indices[:2], indices[-1]]):
            if time.monotonic() < end and self._takes(index):
                return True
        self._say_once("away", f"{self.name} takes no lines, and gets them later")
        self._leave_out()
        return False

    def _leave_out(self):
        """Leaves out the oldest lines, if more than `_MOST_WAITING` wait."""
        if (more := len(self._waiting) - _MOST_WAITING) <= 0:
            return
        for index in list(self._waiting)[:more]:
            del self._waiting[index]
        self._refused &= self._waiting.keys()
        self._left_out += more
        self._say_once(
            "left out",
            f"{self.name} has not taken more than {_MOST_WAITING:,} lines: the "
            "oldest of them are left out. metrics.jsonl has them",
        )

    def finish(self, status):
        """Ends the run in the service, and says how many lines it lacks."""
        if lacks := len(self._waiting) + self._left_out:
            what = f"{self.name} lacks {lacks:,} lines of metrics.jsonl"
            self._warn(what + self._why())
        try:
            self._logger.finish(status)
        except Exception as error:
            self._warn(f"{self.name} has not ended well: {error}")

    def _takes(self, index):
        """Sends a line, and returns whether that went well. Then it waits no more."""
        step = None
        try:
            values = json.loads(self._waiting[index])  # Arrays, and None, stay here.
            step, kinds = values.pop("step"), (int, float)
            numbers = {k: x for k, x in values.items() if isinstance(x, kinds)}
            self._logger.log(step, numbers)
        except Exception as error:
            where = f"line {index + 1}" if step is None else f"step {step}"
            self._error = f"{error} ({where})"
            return False
        del self._waiting[index]
        self._refused.discard(index)
        return True

    def _say_once(self, kind, message):
        if kind not in self._warned:
            self._warned.add(kind)
            self._warn(message + self._why())

    def _why(self):
        return f": {self._error}" if self._error else ""
