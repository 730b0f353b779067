"""Step after step, with what happens between them."""

import contextlib
import time

from remixer_tf.objectives.batches import throughput_unit
from remixer_tf.objectives.metrics import summarize_steps
from remixer_tf.training import experts
from remixer_tf.training.checks import check_ids
from remixer_tf.training.progress import Speed


class StepLoop:
    """Trains to the last step: calls, log lines, checkpoints and evaluations.

    Args:
        engine: the built `Engine`.
        iterator: of the data.
        step: int, the step of the weights of now.
        train_steps, steps_per_call, log_period, checkpoint_period: see `train`.
        progress, log, watch, checkpoints, evaluator, lock, signal: the run's
            `Progress`, `RunLog`, `FiniteWatch`, `Checkpoints`, `Evaluator`, `RunLock`
            and `StopSignal`.
        start_time: float, of `time.perf_counter`, when this process began.
        parameters: int, those of the model.

    Attributes:
        step: int, the last step taken.
        speed: the `Speed` of all steps.
    """

    def __init__(
        self,
        engine,
        iterator,
        step,
        *,
        train_steps,
        steps_per_call,
        log_period,
        checkpoint_period,
        progress,
        log,
        watch,
        checkpoints,
        evaluator,
        lock,
        signal,
        start_time,
        parameters,
    ):
        self.step = step
        self.speed = None
        self._engine = engine
        self._iterator = iterator
        self._train_steps = train_steps
        self._steps_per_call = steps_per_call
        self._log_period = log_period
        self._checkpoint_period = checkpoint_period
        self._progress = progress
        self._log = log
        self._watch = watch
        self._checkpoints = checkpoints
        self._evaluator = evaluator
        self._lock = lock
        self._signal = signal
        self._alone = engine.host.count == 1
        self._start_time = start_time
        self._parameters = parameters
        self._unit = None  # "tokens" or "images"
        self._steps = self._flops = self._read = 0  # of this process
        self._known_shapes = set()
        self._sums = None  # of the calls since the last log line
        self._values = {}  # of the last log line

    def run(self, batch):
        """Takes the steps that are left.

        Args:
            batch: the first superbatch of the data, already read.

        Returns:
            bool, whether training stopped early.

        Raises:
            FloatingPointError, KeyboardInterrupt, OSError, SystemExit, ValueError: see
                `train`.
        """
        self._unit = throughput_unit(batch)
        self.speed = Speed(self._unit)
        stopped_early = False
        while self.step < self._train_steps and not stopped_early:
            self._call(batch)
            batch = None
            self._progress.advance(self.step)
            self._checkpoints.check()
            self._lock.check()
            if self._ends(self._log_period):
                self._report()
            pause = time.perf_counter()
            self._save_if_due()
            if self._evaluator.due(self.step):
                with self._saved():
                    stopped_early = self._evaluator.run(self.step)
            self.speed.skip(time.perf_counter() - pause)
        return stopped_early

    def summary(self):
        """Returns a dictionary: what train_summary.json says at this step.

        Seconds, FLOPs, what was read and skipped are of all processes that have led to
        this step; rates and loss are of this one. A run of several hosts counts the
        FLOPs of all.
        """
        earlier = self._checkpoints.summary
        values, read = self._values, self._read
        if self._sums:
            values = summarize_steps(self._sums)
            read += float(self._sums["tokens"])
        flops = self._flops * self._engine.host.count + earlier.get("flops", 0)
        read += earlier.get(self._unit, 0)
        steps = self._steps + earlier.get("counted_steps", 0)
        return {
            "parameters": self._parameters,
            "steps": self.step,
            "counted_steps": steps,  # Fewer if earlier ones did not count them.
            self._unit: read,
            "flops": flops,
            "flops_per_step": flops / steps,
            f"flops_per_{self._unit.removesuffix('s')}": flops / read,
            **{
                name: values[name]
                for name in ("objective", "loss", "accuracy")
                if name in values
            },
            **self.speed.mean(),
            "skipped_steps": self._watch.skipped + earlier.get("skipped_steps", 0),
            "seconds": (
                time.perf_counter() - self._start_time + earlier.get("seconds", 0)
            ),
        }

    def _ends(self, period):
        return self.step % period == 0 or self.step == self._train_steps

    def _call(self, batch):
        """Reads a batch unless it is given, and takes its steps."""
        start = time.perf_counter()
        if batch is None:
            batch = next(self._iterator)
        waited = time.perf_counter() - start
        shapes = tuple(tuple(value.shape) for value in batch.values())
        known = shapes in self._known_shapes
        if not known:
            check_ids(batch, self._engine.model)
        sums = self._engine.step(batch, stop=self._signal.received is not None)
        self.step += self._steps_per_call
        self._watch.add(self.step, batch, sums)
        flops = self._engine.cost(batch).flops * self._steps_per_call
        self._steps += self._steps_per_call
        self._flops += flops
        if known:
            self.speed.step(self._steps_per_call, flops, waited)
        else:  # The call has traced and compiled.
            self._known_shapes.add(shapes)
            self.speed.skip(time.perf_counter() - start, float(sums["tokens"]))
        if self._sums:
            sums = {name: self._sums[name] + value for name, value in sums.items()}
        self._sums = sums

    def _report(self):
        """Tells the terminal and TensorBoard of the steps since the last time."""
        self._watch.flush()
        values = summarize_steps(self._sums)
        read = float(self._sums["tokens"])
        self._read += read
        values |= self.speed.lap(read)
        self._progress.report(self.step, values)
        if problem := experts.warning(values):
            self._progress.message(problem)
        self._log.scalars(self.step, values, self._engine, self._watch.skipped)
        self._sums, self._values = None, values

    def _save_if_due(self):
        """Saves a checkpoint, also before evaluations, and on signals, which end it."""
        # Several processes agree by a number that goes along with a call.
        stop = self._watch.stop or (self._alone and self._signal.received)
        due = self._ends(self._checkpoint_period) or self._evaluator.due(self.step)
        if due or stop:
            self._watch.flush()
            self._checkpoints.save(self.step, self.summary())
        if stop:
            self._checkpoints.wait()
            self._engine.host.barrier()
            self._signal.leave(
                f"saved step {self.step}. The same command goes on from it."
            )

    def _saved(self):
        """A block in which a signal need not wait, unless other processes would."""
        return self._signal.let_through() if self._alone else contextlib.nullcontext()
