"""What a run does between steps, one class a duty.

After each call of the engine, the loop calls `after_call(step, batch, metrics)` of each
hook in turn. `step` is the last step taken, `batch` the superbatch that was read, and
`metrics` what `Engine.step` returned, sums over the call's steps. Reading one of them
waits for the device. `SkippedSteps`, `Totals`, `Progress` and `Logging` are hooks too.
"""

import dataclasses
from typing import Any

from remixer_tf.checkpoints.reading import checkpoint_path, hash_checkpoint
from remixer_tf.training.run_lock import RunLock
from remixer_tf.training.session import Session
from remixer_tf.training.skipped_steps import SkippedSteps
from remixer_tf.training.totals import Totals


@dataclasses.dataclass
class Evaluating:
    """Runs the evaluations that are due, finds the best step, may stop early.

    Attributes:
        session: the `Session`.
        evaluations: list of `Evaluation`s and `Pictures`, each with a `period`.
        best: a `Best`, or None.
        stops_early: bool, whether the results no longer improve.
    """

    session: Session
    evaluations: list
    best: Any = None
    stops_early: bool = False

    def check(self):
        """Raises ValueError if one of them could not run."""
        for evaluation in self.evaluations:
            evaluation.check(self.session.model_dir, self.evaluations)

    def due(self, step):
        """Returns the evaluations that are due at a step, a list. At the last, all."""
        due = self.session.schedule.due
        return [e for e in self.evaluations if step and due(step, e.period)]

    def after_call(self, step, batch, metrics):
        """A signal during an evaluation ends the run at once: all is saved."""
        if self.due(step):
            with self.session.signal.let_through(), self.session.speed.paused():
                self.run(step)

    def run(self, step, resumed=False):
        """Runs what is due on the weights of now, which are of `step`.

        All hosts call it: each may hold a part of the weights. The first writes.

        Args:
            step: int.
            resumed: bool, whether the step was restored, so that there may be results.
        """
        session, due = self.session, self.due(step)
        engine, checkpoints = session.engine, session.checkpoints
        model_dir, bindings = session.model_dir, session.launch.evaluation_bindings

        def checkpoint():
            # It is written while the model evaluates. One host may ask alone.
            checkpoints.join()
            checkpoints.check()
            return hash_checkpoint(checkpoint_path(checkpoints.directory, step))

        for evaluation in due:
            with session.progress.paused():
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
        if self.best is None:
            return
        checkpoints.best_step, value, self.stops_early = self.best.find(
            model_dir, self.evaluations, engine.model, step, bindings
        )
        if due and engine.host.index == 0 and value is not None:
            self.best.write(model_dir, checkpoints.best_step, value)


@dataclasses.dataclass
class OwnFolder:
    """Ends the run if its folder cannot be written or another run took it over."""

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

    def save(self, step):
        """Saves the current state, unless a step of it was not finite."""
        with self.session.speed.paused():
            self.skipped.flush()
            self.session.checkpoints.save(step, self.totals.summary(step))


@dataclasses.dataclass
class Stopping:
    """Saves and ends the run when a signal has come, here or to another process."""

    session: Session
    skipped: SkippedSteps
    saving: Saving

    def after_call(self, step, batch, metrics):
        # Several processes agree by a number that goes along with a call.
        signal = self.session.signal
        if self.skipped.stop or (signal.alone and signal.received):
            self.saving.save(step)
            self.session.checkpoints.wait()
            self.session.engine.host.barrier()
            signal.leave(f"saved step {step}. The same command goes on from it.")
