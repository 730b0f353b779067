"""The objective that a train step differentiates, of a batch or of a part of it."""

import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable

import keras
from keras import ops
from keras.src import backend

from remixer_tf.arguments import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    check_fields,
)
from remixer_tf.errors import UserError, check_numbers, shorten
from remixer_tf.layers import capture
from remixer_tf.objectives.batches import scorable
from remixer_tf.objectives.hidden import hidden
from remixer_tf.objectives.losses import CrossEntropy


@dataclasses.dataclass(frozen=True)
class Objective:
    """The quantity that a step minimises, and the way to its gradient.

    An attribute of another type, or a number out of its range, is a ValueError.

    Attributes:
        loss_fn: a loss with a method `sums(model_outputs, batch)`, as `CrossEntropy`
            has; or a function of these two. It returns a dictionary of float32 scalars,
            sums over the batch. "objective", divided by the weight of the batch's
            targets, is minimised; the others are logged.
        auxiliary_loss_weights: dictionary {name: c_i}, see `weighted_sum`; None for {}.
        micro_batches: int, the parts that a replica's batch is computed in, one after
            the other, to save memory. Loss and gradient are the same, up to rounding.
        clip_norm: float, the largest global norm of a gradient; None does not clip.
        max_skipped_steps: int, the steps that a process of a run may skip because their
            loss or gradient is not finite. One more ends the run. Steps that overflow
            in float16, and lower the loss scale, do not count.
    """

    loss_fn: Callable = CrossEntropy()
    auxiliary_loss_weights: dict | None = None
    micro_batches: PositiveInt = 1
    clip_norm: NonNegativeFloat | None = None
    max_skipped_steps: NonNegativeInt = 0

    def __post_init__(self):
        check_fields(self)
        if not self._has_sums():
            raise UserError(
                "loss_fn must be a function of outputs and a batch, or a loss with "
                "such a method `sums`: CrossEntropy() (in gin: @CrossEntropy()). "
                f"Received: {self.loss_fn!r}"
            )
        own = type(self.loss_fn)
        if (
            isinstance(self.loss_fn, CrossEntropy)
            and own.__call__ is not CrossEntropy.__call__
            and own.sums is CrossEntropy.sums
        ):
            raise UserError(
                f"The trainer calls {own.__name__}.sums(outputs, batch), and not "
                "__call__, which is Keras'. Override sums, which returns what "
                "__call__(outputs, batch) returned."
            )
        _check_weights(self.auxiliary_loss_weights)

    def _has_sums(self):
        loss_fn = self.loss_fn
        if isinstance(loss_fn, keras.losses.Loss):
            return hasattr(loss_fn, "sums")
        return callable(loss_fn) and not isinstance(loss_fn, type)

    def forward(self, model):
        """Returns a model's call in training, from a batch to what `of_part` takes."""
        if getattr(self.loss_fn, "tokens_at_once", None) is None:
            return functools.partial(model, training=True)
        return functools.partial(hidden, model)

    def of_part(self, outputs, batch, reported, weight, share):
        """Computes a part's share of the objective; the parts' shares add up to it.

        Args:
            outputs: see `forward`.
            batch: dictionary of tensors, the part.
            reported: what `reports` yielded around the model's call.
            weight: float32 scalar, the weight of the targets of all parts.
            share: float, one over the number of parts.

        Returns:
            (objective, sums): a float32 scalar, and a dictionary of float32 scalars and
            vectors: those of `loss_fn`, "auxiliary_loss", "auxiliary/NAME" and
            "statistics/NAME", see `Engine.step`.
        """
        auxiliary, statistics = reported
        sums = getattr(self.loss_fn, "sums", self.loss_fn)(outputs, batch)
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


def try_shapes(model, objective, batch):
    """Computes an objective on shapes alone: raises what a step on them would raise.

    Args:
        model: a built `keras.Model`; its variables may have no values.
        objective: an `Objective`.
        batch: dictionary of `keras.KerasTensor`, `[batch, ...]`.
    """

    def compute(values, batch):
        with keras.StatelessScope(zip(model.variables, values, strict=True)):
            batch = scorable(batch, model)
            with reports(model) as reported:
                outputs = objective.forward(model)(batch)
            one = ops.ones((), "float32")
            return objective.of_part(outputs, batch, reported, one, 1.0)[0]

    values = [keras.KerasTensor(v.shape, v.dtype) for v in model.variables]
    backend.compute_output_spec(compute, values, batch)


def _check_weights(weights):
    try:
        for expression, weight in (weights or {}).items():
            re.compile(expression)
            check_numbers(-math.inf, weight=weight)
    except (AttributeError, TypeError, UserError, re.error):
        raise UserError(
            "auxiliary_loss_weights must be a dictionary of numbers by regular "
            "expression, such as {'regularizer': 0.5}. Received: "
            f"auxiliary_loss_weights={weights!r}"
        ) from None


@contextlib.contextmanager
def reports(model):
    """Collects what the layers of a model report while it is called in training.

    A sowed value, see `layers.sowing`, is called "<path of the layer>/<name>". If a
    layer is called several times, its losses are added, and its statistics averaged.
    There are two more kinds of losses: "<path of the variable>/regularizer" for Keras'
    regularizers, and "add_loss" for the sum of all that was given to Keras' `add_loss`.

    The model is a built `keras.Model`, called once inside of the block. Yields
    (losses, statistics): dictionaries of float32 scalars, and of float32 scalars and
    vectors, complete after the block. Another statistic is a ValueError.
    """
    losses, statistics, calls = {}, {}, {}

    def receive_loss(layer, name, value):
        name = f"{layer.path}/{name}"
        losses[name] = losses.get(name, 0.0) + _scalar(value)

    def receive_statistic(layer, name, value):
        name = f"{layer.path}/{name}"
        if len(value.shape) > 1:
            raise UserError(
                "A statistic must be a scalar or a vector. Received: "
                f"{name} of shape {tuple(value.shape)}"
            )
        calls.setdefault(name, []).append(ops.cast(value, "float32"))

    with capture("losses", receive_loss), capture("statistics", receive_statistic):
        yield losses, statistics
    statistics |= {name: sum(values) / len(values) for name, values in calls.items()}
    regularized = [v for v in model.trainable_weights if v.regularizer is not None]
    # Keras lists what `add_loss` was given first, and then these.
    values = [_scalar(value) for value in model.losses]
    nameless = values[: len(values) - len(regularized)]
    if nameless:
        losses["add_loss"] = sum(nameless)
    for variable, value in zip(regularized, values[len(nameless) :], strict=True):
        losses[f"{variable.path}/regularizer"] = value


def weighted_sum(losses, weights):
    """Returns the weighted sum of auxiliary losses, a float32 scalar.

    `losses` is a dictionary of scalars, from `reports`, and `weights` one of floats by
    regular expression. The first expression that matches a part of a loss' name gives
    its weight; other losses have weight 1. One that matches none is a ValueError.
    """
    idle = [p for p in weights if not any(re.search(p, name) for name in losses)]
    if idle:
        raise UserError(
            f"auxiliary_loss_weights names {', '.join(map(repr, idle))}, and no layer "
            "reports such a loss. The layers of this model report: "
            f"{', '.join(sorted(losses)) or 'none'}."
        )
    total = ops.zeros((), "float32")
    for name, loss in losses.items():
        weight = next((w for p, w in weights.items() if re.search(p, name)), 1.0)
        if weight:  # A loss of weight 0 is only logged.
            total = total + weight * loss
    return total


def unused_variables(paths):
    """Returns the error for trainable variables that no gradient reaches."""
    hint = ""
    if any("position_bias/" in path for path in paths):
        hint = (
            " Only self-attention reads a position bias. For a stack without it set "
            "`TransformerStack.position_bias = None`, or for one stack "
            "`encoder/TransformerStack.position_bias = None`."
        )
    return UserError(
        "The loss does not depend on these trainable variables: "
        f"{shorten(paths)}. Expected a gradient for each: use them in the "
        f"model, or make them non-trainable.{hint}"
    )


def _scalar(value):
    return ops.sum(ops.cast(value, "float32"))
