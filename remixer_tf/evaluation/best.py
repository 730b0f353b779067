"""Which step was best by a metric, and whether it is time to stop."""

import json
import math
import os

import tensorflow as tf


class Best:
    """Finds the best step among the results of a run's evaluations.

    Args:
        metric: str, such as "mini_cogs/dev/exact_match" or "mini_cogs/dev/loss"; after
            the name of an evaluation that has one, "name/mini_cogs/dev/loss".
        mode: "max" or "min".
        patience: int, training stops after so many evaluations without a better one;
            None does not stop it.

    Raises:
        ValueError: an unknown mode.
    """

    def __init__(self, metric, mode="max", patience=None):
        if mode not in ("max", "min"):
            raise ValueError(f"mode must be 'max' or 'min'. Received: {mode!r}")
        self.metric = metric
        self._sign = 1 if mode == "max" else -1
        self._patience = patience

    def find(self, model_dir, evaluations, model):
        """Reads the results of these evaluations, with their settings of today.

        A value that is not a number is never best. It counts as an evaluation that was
        no better.

        Args:
            model_dir: folder of the run.
            evaluations: list of `Evaluation`s.
            model: the run's built `keras.Model`.

        Returns:
            (step, value, stop): of the best evaluation so far, None if there is none,
            and whether the last `patience` evaluations were no better.

        Raises:
            ValueError: evaluations ran, and none has the metric.
        """
        values, names = {}, set()
        for evaluation in evaluations:
            for result in evaluation.results(model_dir, model):
                for name, value in result["metrics"].items():
                    parts = evaluation.name, result["task"], result["split"], name
                    names.add(name := "/".join(filter(None, parts)))
                    if name == self.metric:
                        values[result["step"]] = value
        if names and not values:
            raise ValueError(
                f"No evaluation gives the metric {self.metric!r}. They give: "
                f"{', '.join(sorted(names))}."
            )
        numbers = {step: v for step, v in values.items() if not math.isnan(v)}
        if not numbers:
            return None, None, False
        # Of equals, the first.
        step = max(numbers, key=lambda step: (self._sign * numbers[step], -step))
        since = sum(other > step for other in values)
        stop = self._patience is not None and since >= self._patience
        return step, numbers[step], stop

    def write(self, model_dir, step, value):
        """Writes <model_dir>/best.json, for people and programs."""
        best = {"metric": self.metric, "step": step, "value": value}
        with tf.io.gfile.GFile(os.path.join(model_dir, "best.json"), "w") as file:
            json.dump(best, file, indent=2)
