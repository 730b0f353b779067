"""A hook that sends the lines of metrics.jsonl to the loggers of a run."""

import json
import math
import os
import time

import tensorflow as tf

from remixer_tf.checkpoints.whole_folder import read_json, write_json
from remixer_tf.errors import UserError
from remixer_tf.training.session import Session

_PATIENCE = 10  # seconds for other lines after the first that a service does not take


class Sending:
    """Sends each new line of metrics.jsonl, as a context manager around the loop.

    While a service takes nothing, its lines wait, in order. A line that it refuses
    while it takes others is left out, and tried again when the run ends or resumes.
    `loggers.json` in the run's folder remembers the run of each service, how many lines
    were sent and which of them are missing, for a process that resumes. Host 0 sends to
    the loggers of `Launch.watching`. `evaluating`, an `Evaluating`, writes lines too.
    The hyperparameters are a dictionary of numbers and strings.
    """

    def __init__(self, session: Session, evaluating, hyperparameters):
        self._session, self._evaluating = session, evaluating
        self._hyperparameters = hyperparameters
        self._loggers = {}  # started, by name
        # {name: {"run_id": str, "lines": number of those that were sent or refused,
        # "missing": [index of a refused line, ...]}}
        self._state = {}
        self._lines = []  # of metrics.jsonl
        self._position = 0  # in the file
        self._errors = {}  # {name: the last error}
        self._warned = set()  # of (name, kind of warning)

    def __enter__(self):
        if self._session.engine.host.index == 0:
            with self._session.speed.paused():
                self._start()
        return self

    def __exit__(self, kind, *exception):
        stopped = kind in (SystemExit, KeyboardInterrupt)
        status = "finished" if kind is None else "stopped" if stopped else "failed"
        self._send(again=True)
        for name, state in self._state.items():
            if missing := len(state["missing"]) + len(self._lines) - state["lines"]:
                self._session.progress.message(
                    f"warning: {name} lacks {missing} lines of metrics.jsonl: "
                    f"{self._errors[name]}"
                )
        self._finish(status)

    def after_call(self, step, batch, metrics):
        """Sends the lines that other hooks have written after this call."""
        schedule = self._session.schedule
        if schedule.due(step, schedule.log_period) or self._evaluating.due(step):
            with self._session.speed.paused():
                self._send()

    def _start(self):
        state = read_json(self._path("loggers.json"))
        state = state if isinstance(state, dict) else {}
        for logger in self._session.launch.watching.loggers:
            name = type(logger).__name__
            known = state.get(name)
            known = known if isinstance(known, dict) else {}
            arguments = known.get("run_id"), self._hyperparameters
            try:
                run_id = logger.start(self._session.model_dir, *arguments)
            except Exception as error:
                self._finish("failed")
                reason = str(error).rstrip(".")
                raise UserError(
                    f"{name} cannot start: {reason}. Correct its settings, or leave it "
                    "out of Watching.loggers."
                ) from error
            self._loggers[name] = logger
            lines, missing = known.get("lines", 0), known.get("missing", [])
            self._state[name] = {"run_id": run_id, "lines": lines, "missing": missing}
        self._send(again=True)

    def _send(self, again=False):
        """Sends the new lines to all; `again`, those that were refused, too."""
        if not self._loggers:
            return
        self._read()
        for name, logger in self._loggers.items():
            state = self._state[name]
            # The file is shorter if the run resumed from an earlier checkpoint.
            there = len(self._lines)
            known = min(state["lines"], there)
            missing = {index for index in state["missing"] if index < known}
            waiting = [*sorted(missing if again else ()), *range(known, there)]
            sent, failed = self._log(name, logger, waiting)
            known = max([known, *(index + 1 for index in sent)])
            # A service that took a later line is there: it refused these.
            refused = {index for index in failed if index < known} - missing
            missing = (missing | refused) - sent
            state.update(lines=known, missing=sorted(missing))
            if sent:
                self._warned.discard((name, "fails"))
            self._warn(name, refused, not sent and failed)
        write_json(self._path("loggers.json"), self._state)

    def _log(self, name, logger, indices):
        """Sends lines by their indices, and returns the sets of sent and failed ones.

        Training waits meanwhile. A service that does not answer may take long for each
        error, so that the rest of the lines is left for the next time.
        """
        sent, failed, end = set(), set(), math.inf
        for index in indices:
            if time.monotonic() > end:
                break
            if self._takes(name, logger, index):
                sent.add(index)
            else:
                failed.add(index)
                end = min(end, time.monotonic() + _PATIENCE)
        if sent:  # Others may have failed before the service came back.
            again = {i for i in sorted(failed) if self._takes(name, logger, i)}
            sent, failed = sent | again, failed - again
        return sent, failed

    def _takes(self, name, logger, index):
        """Sends a line, and returns whether that went well."""
        values = json.loads(self._lines[index])  # Arrays, and None, stay here.
        step, kinds = values.pop("step"), (int, float)
        numbers = {k: x for k, x in values.items() if isinstance(x, kinds)}
        try:
            logger.log(step, numbers)
        except Exception as error:
            self._errors[name] = f"{error} (step {step})"
            return False
        return True

    def _warn(self, name, refused, fails):
        """Says once that a service refuses lines, and once that it takes none."""
        ways = {
            "refuses": ("does not take some lines, and gets them again later", refused),
            "fails": ("takes no lines, and gets them later", fails),
        }
        for way, (what, lines) in ways.items():
            if lines and (name, way) not in self._warned:
                message = f"warning: {name} {what}: {self._errors[name]}"
                self._session.progress.message(message)
                self._warned.add((name, way))

    def _read(self):
        """Reads the new whole lines of metrics.jsonl."""
        if not tf.io.gfile.exists(self._path("metrics.jsonl")):
            return
        with tf.io.gfile.GFile(self._path("metrics.jsonl"), "rb") as file:
            file.seek(self._position)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._lines += whole.splitlines()
        self._position += len(whole)

    def _finish(self, status):
        for name, logger in self._loggers.items():
            try:
                logger.finish(status)
            except Exception as error:
                self._session.progress.message(
                    f"warning: {name} has not ended well: {error}"
                )

    def _path(self, name):
        return os.path.join(self._session.model_dir, name)
