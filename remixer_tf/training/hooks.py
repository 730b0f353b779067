"""Hooks: the duties of a run between steps, a class each.

After each call of the engine, the loop calls `after_call(step, batch, metrics)` of each
hook in turn. `step` is the last step taken, `batch` the superbatch that was read.
`metrics` are the sums that `Engine.step` returned; reading one waits for the device.
`Totals`, `Logging` and `Progress` are hooks too.
"""

import dataclasses
import io
import os
from typing import Any

import numpy as np
import tensorflow as tf
from absl import logging

from remixer_tf import console
from remixer_tf.checkpoints.reading import (
    available_steps,
    best_steps,
    checkpoint_path,
    hash_checkpoint,
)
from remixer_tf.checkpoints.whole_folder import write_whole
from remixer_tf.engines.engine import Host
from remixer_tf.errors import NotFiniteError
from remixer_tf.objectives.batches import targets_and_weights
from remixer_tf.training.logs import Totals
from remixer_tf.training.run_folder import RunLock
from remixer_tf.training.session import Session


class SkippedSteps:
    """Counts steps that were skipped as not finite, and ends the run after too many.

    It reads a call's result while the next call runs, so that the host does not wait
    for the device. The result is a sum over all hosts, so all count alike and end after
    the same step. The batch of such a step is kept in `nonfinite-<step>` with the
    operative gin, `configuration`. `host` writes its part of the batch. Up to
    `max_skipped` steps may be not finite after a start. Steps that overflowed in
    float16 lower the loss scale, and do not count.

    Attributes:
        count: int, the skipped steps since the start, with those that overflowed.
        stop: bool, whether a host asked to stop in the results that were read.
    """

    def __init__(self, model_dir, max_skipped=0, configuration="", host=None):
        self.count = 0
        self.stop = False
        self._not_finite = 0
        self._model_dir = model_dir
        self._max_skipped = max_skipped
        self._configuration = configuration
        self._host = host or Host()
        self._last = None

    def after_call(self, step, batch, metrics):
        """Reads the result of the call before. Raises as `flush` does."""
        self.flush()
        self._last = step, batch, metrics

    def flush(self):
        """Reads the result of the last call. Raises NotFiniteError, see the class."""
        if self._last is None:
            return
        (step, batch, metrics), self._last = self._last, None
        self.stop |= float(metrics["stop"]) > 0
        skipped = round(float(metrics["skipped"]))
        overflowed = round(float(metrics.get("overflowed", 0)))
        self.count += skipped + overflowed
        self._not_finite += skipped
        first = step - targets_and_weights(batch)[0].shape[0] + 1

        def steps(number):
            return (
                f"step {step}"
                if first == step
                else f"{number} of steps {first} to {step}"
            )

        if overflowed:
            logging.warning(
                "Gradients overflowed in %s. Such steps change no weights and halve "
                "the loss scale. %d steps were skipped in this run.",
                steps(overflowed),
                self.count,
            )
        if not skipped:
            return
        folder = os.path.join(self._model_dir, f"nonfinite-{step}")
        tf.io.gfile.makedirs(folder)
        self._write(folder, batch)
        text = (
            f"Loss or gradient was not finite in {steps(skipped)}, "
            f"{self._not_finite} in this run. Such steps change no weights. The batch "
            f"is in {folder}."
        )
        if self._not_finite > self._max_skipped:
            raise NotFiniteError(
                f"{text} No more than {self._max_skipped} are allowed "
                "(max_skipped_steps). The last checkpoint is good. Try a smaller "
                "learning rate, more warm-up, clip_norm, or float32."
            )
        logging.warning("%s", text)

    def _write(self, folder, batch):
        shard = self._host.shard_info
        if self._host.saves_position:  # The other hosts have the same rows.
            content = io.BytesIO()
            arrays = {key: value.numpy() for key, value in batch.items()}
            np.savez_compressed(content, **arrays)
            name = f"batch-{shard.index}-of-{shard.num_shards}.npz"
            write_whole(os.path.join(folder, name), content.getvalue())
        if self._host.index == 0:
            write_whole(f"{folder}/operative_config.gin", self._configuration)


@dataclasses.dataclass
class Evaluating:
    """Runs evaluations, finds the best step, and may end training early."""

    session: Session
    evaluations: list  # of `Evaluation`s and `Pictures`, each with a `period`
    best: Any = None  # a `Best`
    stops_early: bool = False  # whether the results no longer improve

    def check(self):
        """Raises ValueError if an evaluation could not run."""
        for evaluation in self.evaluations:
            evaluation.check(self.session.model_dir, self.evaluations)

    def due(self, step):
        """Returns the list of evaluations to run at a step: all at the last step."""
        due = self.session.schedule.due
        return [e for e in self.evaluations if step and due(step, e.period)]

    def after_call(self, step, batch, metrics):
        # A signal during an evaluation ends the run at once: everything is saved.
        if self.due(step):
            with self.session.signal.let_through(), self.session.speed.paused():
                self.run(step)

    def run(self, step, resumed=False):
        """Runs the evaluations of a step; a `resumed` one may have results already.

        All hosts call it, and host 0 writes.
        """
        session, due = self.session, self.due(step)
        engine, checkpoints = session.engine, session.checkpoints
        model_dir, bindings = session.model_dir, session.launch.evaluation_bindings

        def checkpoint():
            # It is written while the model evaluates. One host may call this alone.
            checkpoints.join()
            checkpoints.check()
            return hash_checkpoint(checkpoint_path(checkpoints.directory, step))

        for evaluation in due:
            with session.progress.paused(), engine.averaged():
                evaluation.run(
                    model_dir,
                    engine,
                    step,
                    checkpoint=checkpoint,
                    bindings=bindings,
                    force=not resumed,
                )
        if due:
            engine.host.barrier()
        if resumed:
            if self.best is None:
                steps = best_steps(model_dir)
            else:
                known = model_dir, self.evaluations, engine.model, bindings
                steps = self.best.earlier(*known)
            there = available_steps(checkpoints.directory)
            checkpoints.earlier_best = [step for step in steps if step in there]
            self._say_earlier(checkpoints.earlier_best)
        if self.best is None:
            return
        checkpoints.best_step, value, self.stops_early = self.best.find(
            model_dir, self.evaluations, engine.model, step, bindings
        )
        if due and engine.host.index == 0 and value is not None:
            step, earlier = checkpoints.best_step, checkpoints.earlier_best
            self.best.write(model_dir, step, value, earlier)

    def _say_earlier(self, steps):
        if steps and self.session.engine.host.index == 0:
            listed = ", ".join(map(str, steps))
            reason = "was scored under another configuration or version"
            if self.best is None:
                reason = "was the best, and Checkpointing.best is None now"
            console.say(
                f"best.json: step {listed} {reason}. It is not compared with later "
                "steps, and its checkpoint stays.",
                "warning",
            )


@dataclasses.dataclass
class OwnFolder:
    """Ends the run if its folder cannot be written, or another run took it over."""

    session: Session
    lock: RunLock

    def after_call(self, step, batch, metrics):
        self.session.checkpoints.check()
        self.lock.check()


@dataclasses.dataclass
class Saving:
    """Saves a checkpoint at the end of each period, and before evaluations."""

    session: Session
    evaluating: Evaluating
    totals: Totals
    skipped: SkippedSteps

    def after_call(self, step, batch, metrics):
        schedule = self.session.schedule
        due = schedule.due(step, schedule.checkpoint_period)
        if due or self.evaluating.due(step):
            self.save(step)

    def save(self, step, hangs=False):
        """Saves the current state. Raises if too many steps were not finite.

        For `hangs` see `Checkpoints.save`.
        """
        with self.session.speed.paused():
            self.skipped.flush()
            self.session.checkpoints.save(step, self.totals.summary(step), hangs)


@dataclasses.dataclass
class Stopping:
    """Saves and ends the run when a signal has come, here or to another process."""

    session: Session
    skipped: SkippedSteps
    saving: Saving

    def after_call(self, step, batch, metrics):
        # Several processes agree: `stop` is a sum over all of them.
        if self.skipped.stop or self.session.signal.came_alone():
            self.leave(step)

    def leave(self, step, hangs=False):
        """Saves and ends the run. For `hangs` see `Checkpoints.save`."""
        self.saving.save(step, hangs)
        self.session.checkpoints.wait()
        self.session.engine.host.barrier()
        what = f"saved step {step}. Run the same command to resume."
        self.session.signal.leave(f"the data do not come; {what}" if hangs else what)


class Profiling:
    """Records what host 0 and its devices do in the steps of `Launch.profile`.

    The trace is in tensorboard/train/plugins/profile/<time>, where TensorBoard looks:
    HOST.xplane.pb for TensorBoard, and HOST.trace.json.gz for Perfetto. It is written
    too if the run ends before. Use it as a context manager around the loop.
    """

    def __init__(self, session):
        self._session = session
        self._start, self._stop = session.launch.profile or (None, None)
        if session.engine.host.index:
            self._start = None
        self._folder = os.path.join(session.model_dir, "tensorboard", "train")
        self._records = False

    def __enter__(self):
        step = self._session.step
        if self._start is not None and step > self._start:
            self._session.progress.message(
                "warning: no trace is written: --profile begins at step "
                f"{self._start}, and the run continues from step {step}"
            )
        if step == self._start:
            self._begin()
        return self

    def __exit__(self, *exception):
        if self._records:
            self._end()

    def after_call(self, step, batch, metrics):
        """Begins or ends the recording after a step."""
        begins, ends = step == self._start, self._records and step == self._stop
        if not begins and not ends:
            return
        float(metrics["steps"])  # Wait until the device has taken the step.
        with self._session.speed.paused():
            self._begin() if begins else self._end()

    def _begin(self):
        self._session.engine.start_trace(self._folder)
        self._records = True

    def _end(self):
        self._records = False
        self._session.engine.stop_trace()
        self._session.progress.message(
            f"the trace of steps {self._start} to {self._stop} is in "
            f"{self._folder}/plugins/profile"
        )
