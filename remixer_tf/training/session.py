"""What the loop and its hooks share, and what a run does before its first step."""

from remixer_tf.checkpoints.vocabularies import (
    forget_vocabularies,
    name_copies,
    remember_vocabularies,
)
from remixer_tf.training.changes import write_configuration
from remixer_tf.training.checks import check_no_results, check_vocabulary_size
from remixer_tf.training.layer_checks import check_own_layers
from remixer_tf.training.metrics_file import remove_metrics_after
from remixer_tf.training.progress import Progress, Speed, format_seconds
from remixer_tf.training.totals import remove_summary, write_summary


class Session:
    """A run while a process trains it.

    Its methods are called once each, in their order.

    Args:
        launch: the `Launch`.
        schedule: the `Schedule`.
        engine: the built `Engine`.
        batches: the `TimedBatches`.
        checkpoints: the `Checkpoints`.
        signal: the `StopSignal`.

    Attributes:
        launch, schedule, engine, batches, checkpoints, signal: see above.
        model_dir: str, folder of the run.
        speed: the `Speed` of the steps.
        step: int, the step that the run continues from.
        progress: the `Progress`.
    """

    def __init__(self, launch, schedule, engine, batches, checkpoints, signal):
        self.launch = launch
        self.schedule = schedule
        self.engine = engine
        self.batches = batches
        self.checkpoints = checkpoints
        self.signal = signal
        self.model_dir = launch.model_dir
        self.speed = Speed()
        self._writes = engine.host.index == 0 and not launch.dry_run

    def restore(self, checkpointing, undo):
        """Sets the weights: the run's own, else initial ones, else new ones.

        If the start fails, `undo`, a `contextlib.ExitStack`, removes the vocabularies
        of a run that starts from scratch.
        """
        host, model = self.engine.host, self.engine.model
        restart_data_at = checkpointing.restart_data_at
        self.step = self.checkpoints.restore(
            restart_data_at, clean=not self.launch.dry_run
        )
        steps = self.schedule.train_steps
        self.progress = Progress(self.step, steps, silent=host.index > 0)
        continues = bool(self.step) or self.checkpoints.has_start
        if not continues:
            check_no_results(self.model_dir)
            if checkpointing.initial:
                self.progress.message(checkpointing.initial(model))
            self._origin = f"starting {self.model_dir} from scratch"
        else:
            anew = "; the data starts anew" * (self.step == restart_data_at)
            self._origin = f"continuing from step {self.step}{anew}"
        vocabularies = getattr(self.batches.data, "vocabularies", None) or {}
        check_vocabulary_size(vocabularies, model)
        if vocabularies and self._writes:
            new = remember_vocabularies(self.model_dir, vocabularies, continues)
            if not continues:
                undo.callback(forget_vocabularies, self.model_dir, new)
        host.barrier()

    def nothing_to_do(self, evaluating):
        """Runs evaluations that a kill left out. Returns whether no steps are left."""
        evaluating.check()
        if self._writes:
            remove_metrics_after(self.model_dir, self.step)
        if not self.launch.dry_run:
            evaluating.run(self.step, resumed=True)
        if self.step < self.schedule.train_steps and not evaluating.stops_early:
            return False
        if self._writes:  # A kill after the last step left it out.
            summary = {"steps": self.step, **self.checkpoints.summary}
            write_summary(self.model_dir, summary, replace=False)
        stopped, more = ", stopped early", "patience"
        if not evaluating.stops_early:
            stopped, more = "", "train_steps"
        self.progress.message(
            f"{self.model_dir} is at step {self.step} of {self.schedule.train_steps}"
            f"{stopped}: nothing to do. Set more {more} to go on."
        )
        return True

    def check_layers(self, evaluating):
        """Reads the first batch, and tries layers of a user's own.

        They are asked for steps of decoding if an evaluation of the run decodes.
        """
        batch = self.batches.read_first()
        if self.launch.layer_checks:
            decodes = any(getattr(e, "decodes", False) for e in evaluating.evaluations)
            check_own_layers(self.engine.model, batch, decodes)

    def describe(self, overview, dtype_policy):
        """Says what will run, and from where."""
        self.progress.message(overview.text(self.batches, dtype_policy))
        self.progress.message(self._origin)
        if self.launch.dry_run:
            self.progress.message("dry run: nothing was trained or written")

    def write_configuration(self):
        """Writes operative_config.gin. Returns its text, and the hyperparameters."""
        if self._writes:
            remove_summary(self.model_dir)  # It would say that the run has ended.
        configuration = self.launch.configuration
        text, hyperparameters = configuration() if configuration else ("", {})
        if text and self._writes:
            text = name_copies(text, self.model_dir)
            if changes := write_configuration(self.model_dir, text, self.step):
                self.progress.message(changes)
        return text, hyperparameters

    def finish(self, step, summary, stopped_early):
        """Writes the summary after the last step, and says that the run has ended."""
        if self._writes:
            write_summary(self.model_dir, summary)
        self.progress.message(
            f"{'stopped early' if stopped_early else 'trained'} at step {step} after "
            f"{format_seconds(summary['seconds'])}; checkpoints are in "
            f"{self.model_dir}"
        )
