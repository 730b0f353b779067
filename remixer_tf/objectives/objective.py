"""What a train step differentiates: the objective of a batch, or of a part of it."""

import dataclasses
from collections.abc import Callable

from keras import ops

from remixer_tf.errors import UserError
from remixer_tf.layers.checks import check_integers, check_numbers
from remixer_tf.objectives.auxiliary import reports, weighted_sum
from remixer_tf.objectives.losses import CrossEntropy


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a step minimises, and how it computes the gradient.

    Attributes:
        loss_fn: a function `loss_fn(model_outputs, batch)` that returns a dictionary of
            float32 scalars, sums over the batch: "objective", to be minimised after its
            division by the weight of the batch's targets, and others to be logged.
        auxiliary_loss_weights: dictionary {name: c_i}, see `weighted_sum`; None for {}.
        micro_batches: int, the parts that a replica's batch is computed in, one after
            the other, to save memory. Loss and gradient are the same, up to rounding.
        clip_norm: float, the largest global norm of a gradient; None does not clip.
        max_skipped_steps: int, how many steps whose loss or gradient is not finite a
            run may skip. One more ends it.

    Raises:
        ValueError: a number is out of its range.
    """

    loss_fn: Callable = CrossEntropy()
    auxiliary_loss_weights: dict | None = None
    micro_batches: int = 1
    clip_norm: float | None = None
    max_skipped_steps: int = 0

    def __post_init__(self):
        check_integers(micro_batches=self.micro_batches)
        check_integers(0, max_skipped_steps=self.max_skipped_steps)
        if self.clip_norm is not None:
            check_numbers(clip_norm=self.clip_norm)

    def of_part(self, model, batch, weight, share):
        """Computes a part's share of the objective; the parts' shares add up to it.

        Args:
            model: a built `keras.Model`, called in training.
            batch: dictionary of tensors, the part.
            weight: float32 scalar, the weight of the targets of all parts.
            share: float, one over the number of parts.

        Returns:
            (objective, sums): a float32 scalar, and a dictionary of float32 scalars and
            vectors: those of `loss_fn`, "auxiliary_loss", "auxiliary/NAME" and
            "statistics/NAME", see `Engine.step`.
        """
        with reports(model) as (auxiliary, statistics):
            outputs = model(batch, training=True)
        sums = self.loss_fn(outputs, batch)
        objective = ops.divide_no_nan(sums["objective"], weight)
        if auxiliary or self.auxiliary_loss_weights:
            weights = self.auxiliary_loss_weights or {}
            added = weighted_sum(auxiliary, weights) * share
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
