"""Means from sums over batches."""

import math

import numpy as np
from keras import ops

# Sums of a train step that are not the objective's.
_COUNTS = {"weight", "tokens", "stop", "steps", "updates", "skipped", "overflowed"}


def summarize(sums, unit="tokens"):
    """Returns the means of one or more batches from their added sums.

    Add all sums over batches, replicas and micro-batches first, so that every unit of
    weight counts alike. Each sum is divided by the weight. The mean of "correct", from
    0 to 1, is called "token_accuracy", or "image_accuracy" (top-1) if the `unit` of
    weight is "images". perplexity = exp(loss).

    Without any weight all means are NaN. The perplexity is inf where exp(loss) exceeds
    float32, from a loss of 88.73. With label smoothing it is the exponential of the
    smoothed loss.

    `sums` is a dictionary of scalars, tensors or numbers: "weight" and any others, such
    as those of `losses.cross_entropy`. The result has float32 scalars.
    """
    weight = ops.cast(sums["weight"], "float32")
    has_weight = weight > 0
    safe_weight = ops.where(has_weight, weight, 1.0)
    means = {
        f"{unit[:-1]}_accuracy" if key == "correct" else key: ops.where(
            has_weight, ops.cast(value, "float32") / safe_weight, float("nan")
        )
        for key, value in sums.items()
        if key != "weight"
    }
    if "loss" in means:
        means["perplexity"] = ops.exp(means["loss"])
    return means


def summarize_steps(sums, unit="tokens"):
    """Returns the means that a log line shows, from the sums of train steps.

    `sums` is what one call of a train step returned, or several of them added up.

    Returns:
        dict of floats, or float32 arrays `[n]`: the objective's sums per `unit` of
        weight, see `summarize`; and the means of gradient_norm, learning_rate,
        auxiliary losses and statistics over the steps that changed the weights, NaN
        without any.
    """
    sums = {
        key: np.array(value, "float32") if len(np.shape(value)) else float(value)
        for key, value in sums.items()
    }
    names = ("gradient_norm", "learning_rate", "auxiliary", "statistics/")
    of_step = {key for key in sums if key.startswith(names)}
    others = sums.keys() - of_step - _COUNTS | {"weight"}
    means = summarize({key: sums[key] for key in sums if key in others}, unit)
    summary = {key: float(value) for key, value in means.items()}
    for key in sorted(of_step):
        summary[key] = sums[key] / (sums["updates"] or math.nan)
    return summary
