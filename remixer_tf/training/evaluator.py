"""The evaluations of a run while it trains."""

from remixer_tf.checkpoints.reading import checkpoint_path, hash_checkpoint


class Evaluator:
    """Runs what is due, finds the best step, and says when to stop early.

    Args:
        model_dir: folder of the run.
        engine: the built `Engine`.
        evaluations: list of `Evaluation`s and `Pictures`, each with a `period`.
        best: a `Best`, or None.
        checkpoints: the run's `Checkpoints`, told which step is best.
        progress: the run's `Progress`.
        schedule: the run's `Schedule`. At its last step all are due.
        bindings: see `Evaluation.run`.
    """

    def __init__(
        self,
        model_dir,
        engine,
        evaluations,
        best,
        checkpoints,
        progress,
        schedule,
        bindings=None,
    ):
        self._bindings = bindings
        self._model_dir = model_dir
        self._engine = engine
        self._evaluations = evaluations
        self._best = best
        self._checkpoints = checkpoints
        self._progress = progress
        self._schedule = schedule

    def check(self):
        """Raises ValueError if one of them could not run."""
        for evaluation in self._evaluations:
            evaluation.check(self._model_dir, self._evaluations)

    def due(self, step):
        """Returns the evaluations that are due at a step, a list."""
        return [
            evaluation
            for evaluation in self._evaluations
            if step and self._schedule.due(step, evaluation.period)
        ]

    def run(self, step, resumed=False):
        """Runs what is due on the weights of now, which are of `step`.

        All hosts call it: each may hold a part of the weights. The first writes.

        Args:
            step: int.
            resumed: bool, whether the step was restored, so that there may be results.

        Returns:
            bool, whether to stop early.
        """
        due = self.due(step)
        host = self._engine.host

        def checkpoint():
            # It is written while the model evaluates. One host may ask alone.
            self._checkpoints.join()
            self._checkpoints.check()
            return hash_checkpoint(checkpoint_path(self._checkpoints.directory, step))

        for evaluation in due:
            with self._progress.paused():
                evaluation.run(
                    self._model_dir,
                    self._engine,
                    step,
                    checkpoint=checkpoint,
                    bindings=self._bindings,
                    force=not resumed,
                )
        if due:
            host.barrier()
        if self._best is None:
            return False
        best_step, value, stop = self._best.find(
            self._model_dir, self._evaluations, self._engine.model, step, self._bindings
        )
        self._checkpoints.best_step = best_step
        if due and host.index == 0 and value is not None:
            self._best.write(self._model_dir, best_step, value)
        return stop
