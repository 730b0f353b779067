"""Which step was best by a metric, and whether it is time to stop."""

import math
import os

from remixer_tf.checkpoints.reading import best_steps
from remixer_tf.checkpoints.whole_folder import write_json
from remixer_tf.errors import UserError, check_choices, nearest
from remixer_tf.evaluation.results import metrics_by_name


def givers(evaluations, metric, option):
    """Returns those of evaluations that give a metric, a list; reads data.

    It is empty for a metric that could not be tried. Raises a UserError if none gives
    it. `option` is what names it, such as "--metric=".
    """
    given = [(e, e.metric_names(metric)) for e in evaluations]
    names = set().union(*(names for _, names in given))
    prefixes = tuple(name for name in names if name.endswith("/"))
    if metric not in names and not metric.startswith(prefixes):
        raise UserError(
            f"No evaluation gives {option}{metric!r}.{nearest(metric, names)} They "
            f"give: {', '.join(sorted(names)) or 'nothing'}."
        )
    return [e for e, names in given if metric in names]


class Best:
    """Finds the best step among the results of a run's evaluations.

    Args:
        metric: str, such as "mini_cogs/dev/loss", which one evaluation gives. If it has
            a name, that comes first: "name/mini_cogs/dev/loss".
        mode: "max" or "min".
        patience: int, training stops after so many evaluations without a better one.
            None does not stop it.

    Raises:
        ValueError: an unknown mode.
    """

    def __init__(self, metric, mode="max", patience=None):
        check_choices(("max", "min"), mode=mode)
        self.metric = metric
        self._sign = 1 if mode == "max" else -1
        self._patience = patience

    def check(self, evaluations):
        """Raises a ValueError unless one evaluation gives the metric; reads data."""
        self._check_one(givers(evaluations, self.metric, "Best.metric = "))

    def _check_one(self, evaluations):
        if len(evaluations) > 1:
            raise UserError(
                f"Best.metric = {self.metric!r} is given by several evaluations: "
                f"{', '.join(type(e).__name__ for e in evaluations)}. Name one, "
                f"as in {type(evaluations[-1]).__name__}.name = 'a', and Best.metric = "
                f"'a/{self.metric}' if you mean that one."
            )

    def find(self, model_dir, evaluations, model, step, bindings=None):
        """Finds the best of the known results of these evaluations.

        Returns (step, value, stop), the first two None without a result. `stop` is
        whether the last `patience` evaluations were no better. NaN is never best, but
        counts for the patience. Results after `step`, of a run that was killed, are
        ignored. Raises a ValueError if several evaluations give the metric. For the
        other arguments see `Evaluation.results`.
        """
        values = self._values(model_dir, evaluations, model, bindings)
        values = {of: value for of, value in values.items() if of <= step}
        numbers = {step: v for step, v in values.items() if not math.isnan(v)}
        if not numbers:
            return None, None, False
        # The first of equal ones.
        step = max(numbers, key=lambda step: (self._sign * numbers[step], -step))
        since = sum(other > step for other in values)
        stop = self._patience is not None and since >= self._patience
        return step, numbers[step], stop

    def _values(self, model_dir, evaluations, model, bindings):
        """Returns {step: value} of the known results."""
        values, givers = {}, {}
        for evaluation in evaluations:
            for result in evaluation.results(model_dir, model, bindings):
                metrics = metrics_by_name(result)
                if self.metric in metrics:
                    values[result["step"]] = metrics[self.metric]
                    givers[id(evaluation)] = evaluation
        self._check_one([*givers.values()])  # Names that could not be tried before.
        return values

    def earlier(self, model_dir, evaluations, model, bindings=None):
        """Returns the steps in best.json that `find` no longer compares, a list.

        Another configuration or version scored them, and their checkpoints stay.
        """
        steps = best_steps(model_dir)
        known = self._values(model_dir, evaluations, model, bindings) if steps else ()
        return [step for step in steps if step not in known]

    def write(self, model_dir, step, value, earlier=()):
        """Writes <model_dir>/best.json, for people and programs."""
        best = {"metric": self.metric, "step": step, "value": value}
        if earlier:
            best["earlier_steps"] = [*earlier]
        write_json(os.path.join(model_dir, "best.json"), best)
