"""What a train step differentiates: the objective of a batch, or of a part of it."""

from keras import ops

from remixer_tf.errors import UserError
from remixer_tf.objectives.auxiliary import call_with_reports, weighted_sum


def objective_and_sums(model, batch, weight, *, loss_fn, auxiliary_loss_weights, share):
    """Computes a part's share of the objective; the parts' shares add up to it.

    Args:
        model: a built `keras.Model`, called in training.
        batch: dictionary of tensors, the part.
        weight: float32 scalar, the weight of the targets of all parts.
        loss_fn, auxiliary_loss_weights: see `Engine.build`.
        share: float, one over the number of parts.

    Returns:
        (objective, sums): a float32 scalar, and a dictionary of float32 scalars and
        vectors: those of `loss_fn`, "auxiliary_loss", "auxiliary/NAME" and
        "statistics/NAME", see `Engine.step`.
    """
    outputs, auxiliary, statistics = call_with_reports(model, batch)
    sums = loss_fn(outputs, batch)
    objective = ops.divide_no_nan(sums["objective"], weight)
    if auxiliary or auxiliary_loss_weights:
        added = weighted_sum(auxiliary, auxiliary_loss_weights) * share
        objective = objective + added
        sums = {
            **sums,
            **{f"auxiliary/{k}": v * share for k, v in auxiliary.items()},
            "auxiliary_loss": added,
        }
    sums = {**sums, **{f"statistics/{k}": v * share for k, v in statistics.items()}}
    return objective, {key: value for key, value in sums.items() if key != "weight"}


def unused_variables(paths):
    """Returns the error for trainable variables that no gradient reaches."""
    hint = ""
    if any("position_bias/" in path for path in paths):
        hint = (
            " Self-attention alone reads a position bias: a stack without it is given "
            "none by `TransformerStack.position_bias = None`, or "
            "`encoder/TransformerStack.position_bias = None` of one stack."
        )
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return UserError(
        "The loss does not depend on these trainable variables: "
        f"{', '.join(paths[:5])}{more}. Expected a gradient for each: use them in the "
        f"model, or make them non-trainable.{hint}"
    )
