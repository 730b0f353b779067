"""A hook that sends the lines of metrics.jsonl to the loggers of a run."""

import json
import os

import tensorflow as tf

from remixer_tf.checkpoints.whole_folder import read_json, write_json
from remixer_tf.errors import UserError
from remixer_tf.training.session import Session


class Sending:
    """Sends each new line of metrics.jsonl, as a context manager around the loop.

    Lines that a service does not take are sent with the next ones. `loggers.json` in
    the run's folder remembers the run of each service and how many lines it has, for a
    process that resumes. Host 0 sends to the loggers of `Launch.watching`.
    `evaluating`, an `Evaluating`, writes lines too. The hyperparameters are a
    dictionary of numbers and strings.
    """

    def __init__(self, session: Session, evaluating, hyperparameters):
        self._session, self._evaluating = session, evaluating
        self._hyperparameters = hyperparameters
        self._loggers = {}  # started, by name
        self._state = {}  # {name: {"run_id": str, "lines": the number it has}}
        self._lines = []  # of metrics.jsonl
        self._position = 0  # in the file
        self._failed = {}  # {name: the last error}

    def __enter__(self):
        if self._session.engine.host.index == 0:
            with self._session.speed.paused():
                self._start()
        return self

    def __exit__(self, kind, *exception):
        stopped = kind in (SystemExit, KeyboardInterrupt)
        status = "finished" if kind is None else "stopped" if stopped else "failed"
        self._send()
        for name, error in self._failed.items():
            missing = len(self._lines) - self._state[name]["lines"]
            self._session.progress.message(
                f"warning: {name} lacks {missing} lines of metrics.jsonl: {error}"
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
            self._state[name] = {"run_id": run_id, "lines": known.get("lines", 0)}
        self._send()

    def _send(self):
        if not self._loggers:
            return
        self._read()
        for name, logger in self._loggers.items():
            state = self._state[name]
            # The file is shorter if the run resumed from an earlier checkpoint.
            state["lines"] = min(state["lines"], len(self._lines))
            try:
                for line in self._lines[state["lines"] :]:
                    values = json.loads(line)  # Arrays, and None, stay here.
                    step, kinds = values.pop("step"), (int, float)
                    numbers = {k: x for k, x in values.items() if isinstance(x, kinds)}
                    logger.log(step, numbers)
                    state["lines"] += 1
                self._failed.pop(name, None)
            except Exception as error:
                if name not in self._failed:
                    self._session.progress.message(
                        f"warning: {name} takes no lines, and gets them later: {error}"
                    )
                self._failed[name] = error
        write_json(self._path("loggers.json"), self._state)

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
