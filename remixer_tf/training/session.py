"""The state that the loop and its hooks share, and the work before the first step."""

import dataclasses

from remixer_tf.checkpoints.versions import check_run_version
from remixer_tf.checkpoints.vocabularies import (
    check_vocabularies,
    forget_vocabularies,
    remember_vocabularies,
)
from remixer_tf.checkpoints.writing import Checkpoints
from remixer_tf.engines.engine import Engine
from remixer_tf.training.overview import overview
from remixer_tf.training.own_layers import check_own_layers
from remixer_tf.training.progress import Progress, format_seconds
from remixer_tf.training.run_files import (
    remove_metrics_after,
    remove_summary,
    write_configuration,
    write_summary,
)
from remixer_tf.training.run_folder import check_no_results
from remixer_tf.training.settings import Launch, Schedule
from remixer_tf.training.stop_signal import StopSignal
from remixer_tf.training.timed_batches import TimedBatches, check_vocabulary_size


@dataclasses.dataclass
class Session:
    """A run in this process. `train` calls each method once, in their order here.

    `restore` sets `step`, an int from which the run continues, and `progress`, a
    `Progress`. The loop sets `speed`, a `Speed`.
    """

    launch: Launch
    schedule: Schedule
    engine: Engine
    batches: TimedBatches
    checkpoints: Checkpoints
    signal: StopSignal

    def __post_init__(self):
        self.model_dir = self.launch.model_dir
        self._writes = self.engine.host.index == 0 and not self.launch.dry_run

    def restore(self, checkpointing):
        """Sets the weights: from the run's checkpoint, else initial, else new ones."""
        host, model = self.engine.host, self.engine.model
        check_run_version(self.model_dir)
        restart_data_at = checkpointing.restart_data_at
        self.step = self.checkpoints.restore(
            restart_data_at, clean=not self.launch.dry_run
        )
        steps = self.schedule.train_steps
        self.progress = Progress(self.step, steps, silent=host.index > 0)
        continues = bool(self.step) or self.checkpoints.has_start
        if not continues:
            check_no_results(self.model_dir)
            if self._writes:  # A start that failed may have left another vocabulary.
                forget_vocabularies(self.model_dir)
            if checkpointing.initial:
                self.progress.message(checkpointing.initial(model))
            self._origin = f"starting {self.model_dir} from scratch"
        else:
            anew = "; the data starts anew" * (self.step == restart_data_at)
            self._origin = f"continuing from step {self.step}{anew}"
        self._vocabularies = getattr(self.batches.data, "vocabularies", None) or {}
        check_vocabulary_size(self._vocabularies, model)
        if continues and self._vocabularies and self._writes:
            check_vocabularies(self.model_dir, self._vocabularies)
        host.barrier()

    def nothing_to_do(self, evaluating):
        """Runs evaluations that a kill cut off. Returns whether no steps are left."""
        evaluating.check()
        if self._writes:
            remove_metrics_after(self.model_dir, self.step)
        if not self.launch.dry_run:
            evaluating.run(self.step, resumed=True)
        if self.step < self.schedule.train_steps and not evaluating.stops_early:
            return False
        if self._writes:  # After a kill it may be missing.
            summary = {"steps": self.step, **self.checkpoints.summary}
            write_summary(self.model_dir, summary, replace=False)
        stopped, more = "", "Schedule.train_steps"
        if evaluating.stops_early:
            stopped, more = ", stopped early", "patience"
        self.progress.message(
            f"{self.model_dir} is at step {self.step} of {self.schedule.train_steps}"
            f"{stopped}: nothing to do. Set more {more} to continue."
        )
        return True

    def check_layers(self, evaluating, superbatch):
        """Tests a user's own layers: they decode if an evaluation of the run does.

        `superbatch` has the shapes of the data.
        """
        if self.launch.layer_checks:
            decodes = any(getattr(e, "decodes", False) for e in evaluating.evaluations)
            batch = {name: x[0] for name, x in superbatch.items()}
            with self.engine.whole_model() as model:
                for warning in check_own_layers(model, batch, decodes):
                    self.progress.message(f"warning: {warning}")

    def describe(self, cost, dtype_policy):
        """Shows what will run, and where it starts."""
        text = overview(self.engine, self.batches, cost, dtype_policy)
        self.progress.message(text)
        self.progress.message(self._origin)
        if self.launch.dry_run:
            self.progress.message("dry run: nothing was trained or written")

    def write_configuration(self):
        """Writes the configuration and its vocabularies; returns what `Launch` says."""
        if self._writes:
            remove_summary(self.model_dir)  # It means that the run has ended.
            if self._vocabularies:
                remember_vocabularies(self.model_dir, self._vocabularies)
        configuration = self.launch.configuration
        text, hyperparameters = configuration() if configuration else ("", {})
        if text and self._writes:
            if changes := write_configuration(self.model_dir, text, self.step):
                self.progress.message(changes)
        return text, hyperparameters

    def finish(self, step, summary, stopped_early):
        """Writes the summary after the last step, and reports the end."""
        if self._writes:
            write_summary(self.model_dir, summary)
        self.progress.message(
            f"{'stopped early' if stopped_early else 'trained'} at step {step} after "
            f"{format_seconds(summary['seconds'])} (goodput {summary['goodput']:.1%}); "
            f"checkpoints are in {self.model_dir}"
        )
