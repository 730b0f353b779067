"""Metrics from the sums of `losses.cross_entropy`."""

from keras import ops


def summarize(sums):
    """Returns the metrics of one or more batches from their added sums.

    With all sums added over batches, replicas and micro-batches first, so that every
    unit of weight counts alike:

        loss = loss sum / weight     z_loss = z_loss sum / weight
        accuracy = correct / weight  perplexity = exp(loss)

    Without any weight nothing was measured, and all four are NaN. The perplexity is
    inf where exp(loss) exceeds float32, from a loss of 88.73. With label smoothing it
    is the exponential of the smoothed loss.

    Args:
      sums: a dictionary of scalars (tensors or numbers) with the keys "loss", "z_loss",
        "correct" and "weight", as from `losses.cross_entropy`; others are ignored.

    Returns:
      A dictionary of float32 scalars: "loss" (cross entropy per unit of weight),
      "z_loss", "accuracy", "perplexity".

    Raises:
      ValueError: if a key is missing.
    """
    missing = [k for k in ("loss", "z_loss", "correct", "weight") if k not in sums]
    if missing:
        raise ValueError(
            f"The sums lack {missing}. Expected: those of losses.cross_entropy, added. "
            f"Received: {sorted(sums)}"
        )
    weight = ops.cast(sums["weight"], "float32")
    has_weight = weight > 0
    safe_weight = ops.where(has_weight, weight, 1.0)

    def mean(key):
        value = ops.cast(sums[key], "float32") / safe_weight
        return ops.where(has_weight, value, float("nan"))

    loss = mean("loss")
    return {
        "loss": loss,
        "z_loss": mean("z_loss"),
        "accuracy": mean("correct"),
        "perplexity": ops.exp(loss),
    }
