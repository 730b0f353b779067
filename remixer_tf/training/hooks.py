"""What a run does between steps, one class a duty.

After each call of the engine, the loop calls `after_call(step, batch, metrics)` of each
hook in turn. `step` is the last step taken, `batch` the superbatch that was read, and
`metrics` what `Engine.step` returned, sums over the call's steps. Reading one of them
waits for the device. `SkippedSteps`, `Totals` and `Progress` are hooks too.
"""

import dataclasses

from remixer_tf.checkpoints.host import Host
from remixer_tf.checkpoints.writing import Checkpoints
from remixer_tf.engines.engine import Engine
from remixer_tf.training import experts
from remixer_tf.training.evaluator import Evaluator
from remixer_tf.training.progress import Progress, Speed
from remixer_tf.training.run_lock import RunLock
from remixer_tf.training.run_log import RunLog
from remixer_tf.training.schedule import Schedule
from remixer_tf.training.skipped_steps import SkippedSteps
from remixer_tf.training.stop_signal import StopSignal
from remixer_tf.training.totals import Totals


@dataclasses.dataclass
class OwnFolder:
    """Ends the run if its folder cannot be written or another run took it over."""

    checkpoints: Checkpoints
    lock: RunLock

    def after_call(self, step, batch, metrics):
        self.checkpoints.check()
        self.lock.check()


@dataclasses.dataclass
class Logging:
    """Writes the values of each log period to the terminal and the run's log."""

    schedule: Schedule
    engine: Engine
    totals: Totals
    skipped: SkippedSteps
    progress: Progress
    log: RunLog

    def after_call(self, step, batch, metrics):
        if not self.schedule.due(step, self.schedule.log_period):
            return
        self.skipped.flush()
        values = self.totals.end_period()
        self.progress.report(step, values)
        if problem := experts.warning(values):
            self.progress.message(problem)
        self.log.scalars(step, values, self.engine, self.skipped.count)


@dataclasses.dataclass
class Saving:
    """Saves a checkpoint at the end of each period, and before evaluations."""

    schedule: Schedule
    checkpoints: Checkpoints
    evaluator: Evaluator
    totals: Totals
    skipped: SkippedSteps

    def after_call(self, step, batch, metrics):
        due = self.schedule.due(step, self.schedule.checkpoint_period)
        if due or self.evaluator.due(step):
            self.save(step)

    def save(self, step):
        """Saves the current state, unless a step of it was not finite."""
        with self.totals.speed.paused():
            self.skipped.flush()
            self.checkpoints.save(step, self.totals.summary(step))


@dataclasses.dataclass
class Stopping:
    """Saves and ends the run when a signal has come, here or to another process."""

    signal: StopSignal
    skipped: SkippedSteps
    saving: Saving
    host: Host

    def after_call(self, step, batch, metrics):
        # Several processes agree by a number that goes along with a call.
        if self.skipped.stop or (self.signal.alone and self.signal.received):
            self.saving.save(step)
            self.saving.checkpoints.wait()
            self.host.barrier()
            self.signal.leave(f"saved step {step}. The same command goes on from it.")


@dataclasses.dataclass
class Evaluating:
    """Runs the evaluations that are due. A signal in one ends the run at once.

    Attributes:
        stops_early: bool, whether the results no longer improve.
    """

    evaluator: Evaluator
    signal: StopSignal
    speed: Speed
    stops_early: bool = False

    def after_call(self, step, batch, metrics):
        if self.evaluator.due(step):
            with self.signal.let_through(), self.speed.paused():
                self.stops_early = self.evaluator.run(step)
