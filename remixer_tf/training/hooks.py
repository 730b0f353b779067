"""What a run does between steps, one class a duty.

The loop calls `hook.after_call(step, batch, metrics)` of each hook after each call of
the engine: with the last step taken, the superbatch that was read, and the sums over
the call's steps that `Engine.step` returned. Reading a sum waits for the device.
`SkippedSteps`, `Totals` and `Progress` are hooks too.
"""

from remixer_tf.training import experts


class OwnFolder:
    """Ends the run if its folder cannot be written, or another run has taken it over.

    Args:
        checkpoints, lock: the run's `Checkpoints` and `RunLock`.
    """

    def __init__(self, checkpoints, lock):
        self._checkpoints = checkpoints
        self._lock = lock

    def after_call(self, step, batch, metrics):
        """Raises OSError."""
        self._checkpoints.check()
        self._lock.check()


class Logging:
    """Writes the values of each log period to the terminal and the run's log.

    Args:
        schedule, engine, totals, skipped, progress, log: the run's `Schedule`,
            `Engine`, `Totals`, `SkippedSteps`, `Progress` and `RunLog`.
    """

    def __init__(self, schedule, engine, totals, skipped, progress, log):
        self._schedule = schedule
        self._engine = engine
        self._totals = totals
        self._skipped = skipped
        self._progress = progress
        self._log = log

    def after_call(self, step, batch, metrics):
        if not self._schedule.due(step, self._schedule.log_period):
            return
        self._skipped.flush()
        values = self._totals.end_period()
        self._progress.report(step, values)
        if problem := experts.warning(values):
            self._progress.message(problem)
        self._log.scalars(step, values, self._engine, self._skipped.count)


class Saving:
    """Saves a checkpoint at the end of each period, and before evaluations.

    Args:
        schedule, checkpoints, evaluator, totals, skipped: the run's `Schedule`,
            `Checkpoints`, `Evaluator`, `Totals` and `SkippedSteps`.
    """

    def __init__(self, schedule, checkpoints, evaluator, totals, skipped):
        self._schedule = schedule
        self._checkpoints = checkpoints
        self._evaluator = evaluator
        self._totals = totals
        self._skipped = skipped

    def after_call(self, step, batch, metrics):
        due = self._schedule.due(step, self._schedule.checkpoint_period)
        if due or self._evaluator.due(step):
            self.save(step)

    def save(self, step):
        """Saves the state of now, which is finite."""
        with self._totals.speed.paused():
            self._skipped.flush()
            self._checkpoints.save(step, self._totals.summary(step))

    def wait(self):
        """Returns when the last checkpoint is written."""
        self._checkpoints.wait()


class Stopping:
    """Saves and ends the run when a signal has come, here or to another process.

    Args:
        signal, skipped, saving: the run's `StopSignal`, `SkippedSteps` and `Saving`.
        host: the `Host` that this process is.
    """

    def __init__(self, signal, skipped, saving, host):
        self._signal = signal
        self._skipped = skipped
        self._saving = saving
        self._host = host

    def after_call(self, step, batch, metrics):
        """Raises SystemExit or KeyboardInterrupt, see `StopSignal.leave`."""
        # Several processes agree by a number that goes along with a call.
        if self._skipped.stop or (self._signal.alone and self._signal.received):
            self._saving.save(step)
            self._saving.wait()
            self._host.barrier()
            self._signal.leave(f"saved step {step}. The same command goes on from it.")


class Evaluating:
    """Runs the evaluations that are due.

    Their step is saved: a signal ends the run in the middle of them.

    Args:
        evaluator, signal, speed: the run's `Evaluator`, `StopSignal` and `Speed`.

    Attributes:
        stops_early: bool, whether results no longer improve.
    """

    def __init__(self, evaluator, signal, speed):
        self.stops_early = False
        self._evaluator = evaluator
        self._signal = signal
        self._speed = speed

    def after_call(self, step, batch, metrics):
        if self._evaluator.due(step):
            with self._signal.let_through(), self._speed.paused():
                self.stops_early = self._evaluator.run(step)
