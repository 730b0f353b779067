"""Metrics from sums over batches."""

import math

import numpy as np
from keras import ops

from remixer_tf.errors import UserError

# What a train step counts, beside the sums of its objective.
_COUNTS = {"weight", "tokens", "stop", "steps", "updates", "skipped"}


def summarize(sums):
    """Returns the metrics of one or more batches from their added sums.

    With all sums added over batches, replicas and micro-batches first, so that every
    unit of weight counts alike. Each sum is divided by the weight; the mean of
    "correct" is called "accuracy", and perplexity = exp(loss).

    Without any weight nothing was measured, and all are NaN. The perplexity is inf
    where exp(loss) exceeds float32, from a loss of 88.73. With label smoothing it is
    the exponential of the smoothed loss.

    Args:
        sums: a dictionary of scalars (tensors or numbers), "weight" and any others,
            such as those of `losses.cross_entropy`.

    Returns:
        A dictionary of float32 scalars per unit of weight.

    Raises:
        ValueError: there is no weight.
    """
    if "weight" not in sums:
        raise UserError(
            "The sums lack the weight. Expected: those of losses.cross_entropy, added. "
            f"Received: {sorted(sums)}"
        )
    weight = ops.cast(sums["weight"], "float32")
    has_weight = weight > 0
    safe_weight = ops.where(has_weight, weight, 1.0)
    means = {
        "accuracy" if key == "correct" else key: ops.where(
            has_weight, ops.cast(value, "float32") / safe_weight, float("nan")
        )
        for key, value in sums.items()
        if key != "weight"
    }
    if "loss" in means:
        means["perplexity"] = ops.exp(means["loss"])
    return means


def summarize_steps(sums):
    """Returns the means that a log line shows, of the summed results of train steps.

    Args:
        sums: what one call of a train step returned, or several of them added up.

    Returns:
        dict of floats: per unit of weight what the objective sums, see `summarize`; per
        step that changed the weights gradient_norm, learning_rate, the auxiliary losses
        and the statistics, of which some are float32 arrays `[n]`; NaN if there was
        none.
    """
    sums = {
        key: np.array(value, "float32") if len(np.shape(value)) else float(value)
        for key, value in sums.items()
    }
    of_step = {
        key
        for key in sums
        if key in ("gradient_norm", "learning_rate")
        or key.startswith(("auxiliary", "statistics/"))
    }
    of_objective = {
        key: value
        for key, value in sums.items()
        if key == "weight" or key not in _COUNTS | of_step
    }
    summary = {k: float(value) for k, value in summarize(of_objective).items()}
    for key in sorted(of_step):
        summary[key] = sums[key] / (sums["updates"] or math.nan)
    return summary
