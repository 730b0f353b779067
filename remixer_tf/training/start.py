"""What a run does before its first step."""

from remixer_tf.checkpoints.vocabularies import (
    forget_vocabularies,
    name_copies,
    remember_vocabularies,
)
from remixer_tf.training.changes import write_configuration
from remixer_tf.training.checks import check_no_results, check_vocabulary_size
from remixer_tf.training.layer_checks import check_own_layers
from remixer_tf.training.metrics_file import remove_metrics_after
from remixer_tf.training.overview import Overview
from remixer_tf.training.progress import Progress, format_seconds
from remixer_tf.training.totals import remove_summary, write_summary


class Start:
    """Restores a run, checks it, and says what will run. Its methods run in order.

    Args:
        model_dir, train_steps, dry_run: see `train`.
        engine: the built `Engine`.
        batches: the run's `TimedBatches`.
        checkpoints: the run's `Checkpoints`.

    Attributes:
        engine, batches, checkpoints: see above.
        step: int, the step that the run goes on from.
        progress: the run's `Progress`.
    """

    def __init__(self, model_dir, engine, batches, checkpoints, train_steps, dry_run):
        self._model_dir = model_dir
        self.engine = engine
        self.batches = batches
        self.checkpoints = checkpoints
        self._train_steps = train_steps
        self._dry_run = dry_run
        self._writes = engine.host.index == 0 and not dry_run

    def restore(self, initial_checkpoint, restart_data_at, undo):
        """Sets the weights: the run's own, else initial ones, else new ones.

        Where the start fails, `undo`, a `contextlib.ExitStack`, removes the
        vocabularies of a run that starts from scratch.
        """
        host, model = self.engine.host, self.engine.model
        self.step = self.checkpoints.restore(restart_data_at, clean=not self._dry_run)
        self.progress = Progress(self.step, self._train_steps, silent=host.index > 0)
        continues = bool(self.step) or self.checkpoints.has_start
        if not continues:
            check_no_results(self._model_dir)
            if initial_checkpoint:
                self.progress.message(initial_checkpoint(model))
            self._origin = f"starting {self._model_dir} from scratch"
        elif self.step == restart_data_at:
            self._origin = f"continuing from step {self.step}; the data starts anew"
        else:
            self._origin = f"continuing from step {self.step}"
        vocabularies = getattr(self.batches.data, "vocabularies", None) or {}
        check_vocabulary_size(vocabularies, model)
        if vocabularies and self._writes:
            new = remember_vocabularies(self._model_dir, vocabularies, continues)
            if not continues:
                undo.callback(forget_vocabularies, self._model_dir, new)
        host.barrier()

    def nothing_to_do(self, evaluator):
        """Runs evaluations that a kill left out. Returns whether no steps are left."""
        evaluator.check()
        if self._writes:
            remove_metrics_after(self._model_dir, self.step)
        stopped_early = not self._dry_run and evaluator.run(self.step, resumed=True)
        if self.step < self._train_steps and not stopped_early:
            return False
        if self._writes:  # A kill after the last step left it out.
            summary = {"steps": self.step, **self.checkpoints.summary}
            write_summary(self._model_dir, summary, replace=False)
        self.progress.message(
            f"{self._model_dir} is at step {self.step} of {self._train_steps}"
            f"{', stopped early' if stopped_early else ''}: nothing to do. Set "
            f"more {'patience' if stopped_early else 'train_steps'} to go on."
        )
        return True

    def describe(self, dtype_policy, layer_checks, decodes):
        """Reads the first batch, says what will run, and returns the `Overview`.

        Layers are asked for steps of decoding if an evaluation of the run `decodes`.
        """
        self.batches.read_first()
        batch = self.batches.first
        if layer_checks:
            check_own_layers(self.engine.model, batch, decodes)
        overview = Overview(self.engine, dtype_policy)
        data = self.batches.data
        facts = (getattr(data, name, None) for name in ("over_length", "caches"))
        self.progress.message(overview.text(batch, *facts))
        self.progress.message(self._origin)
        if self._dry_run:
            self.progress.message("dry run: nothing was trained or written")
        return overview

    def write_configuration(self, configuration):
        """Writes operative_config.gin. Returns its text, and the hyperparameters."""
        if self._writes:
            remove_summary(self._model_dir)  # It would say that the run has ended.
        text, hyperparameters = configuration() if configuration else ("", {})
        if text and self._writes:
            text = name_copies(text, self._model_dir)
            if changes := write_configuration(self._model_dir, text, self.step):
                self.progress.message(changes)
        return text, hyperparameters

    def finish(self, step, summary, stopped_early):
        """Writes the summary after the last step, and says that the run has ended."""
        if self._writes:
            write_summary(self._model_dir, summary)
        self.progress.message(
            f"{'stopped early' if stopped_early else 'trained'} at step {step} after "
            f"{format_seconds(summary['seconds'])}; checkpoints are in "
            f"{self._model_dir}"
        )
