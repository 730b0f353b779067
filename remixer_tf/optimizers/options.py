"""Checks of an optimizer's arguments and options."""

import math
import numbers

import keras

from remixer_tf.errors import UserError

# Options of Keras' optimizers that no train step here honours: the value that asks for
# nothing, and what there is instead.
_OPTIONS = {
    "gradient_accumulation_steps": (None, "Objective.micro_batches saves memory"),
    "loss_scale_factor": (None, "training scales losses where float16 needs it"),
    "ema_overwrite_frequency": (None, "evaluation and export take the averages"),
}


def check_range(name, value, expected, is_valid):
    """Raises a UserError unless `value` is a finite number that `is_valid` accepts."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not is_valid(value):
        raise UserError(f"{name} must be {expected}. Received: {name}={value!r}")


def check_optimizer(optimizer):
    """Checks that an optimizer has no option that a train step here ignores.

    Keras' own trainer scales losses, overwrites weights and counts updates. With
    another trainer such options change the result or do nothing.

    Args:
        optimizer: a `keras.optimizers.Optimizer`.

    Raises:
        ValueError: it has such an option, or is a `LossScaleOptimizer`.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        _, instead = _OPTIONS["loss_scale_factor"]
        raise UserError(
            f"An optimizer must not be a LossScaleOptimizer: {instead}. Received: "
            f"a LossScaleOptimizer of {type(optimizer.inner_optimizer).__name__}"
        )
    for name, (off, instead) in _OPTIONS.items():
        if (value := getattr(optimizer, name)) != off:
            raise UserError(
                f"{type(optimizer).__name__}.{name} must be {off}: {instead}. "
                f"Received: {name}={value!r}"
            )
