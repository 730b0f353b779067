"""Checks of an optimizer's arguments and options."""

import inspect
from typing import TypedDict

import keras

from remixer_tf.errors import UserError, check_range

# Options of Keras' optimizers that no train step here honours: the value that asks for
# nothing, and what there is instead.
_OPTIONS = {
    "gradient_accumulation_steps": (None, "Objective.micro_batches saves memory"),
    "loss_scale_factor": (None, "training scales losses where float16 needs it"),
    "ema_overwrite_frequency": (None, "evaluation and export take the averages"),
}
# Options of Keras' optimizers that are numbers, or None for nothing.
_NUMBERS = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm")


class OptimizerKeywords(TypedDict, total=False):
    """Keywords of every `keras.optimizers.Optimizer`, see there."""

    name: str
    weight_decay: float | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None


def make_optimizer(factory):
    """Returns the optimizer that `factory` makes.

    Raises:
        UserError: Keras refuses an argument, or one is missing.
    """
    try:
        return factory()
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        reason = str(error).partition("\n  ")[0]  # before what gin adds
        raise UserError(f"The optimizer cannot be made: {reason}") from error


def check_numeric_options(optimizer):
    """Raises a UserError if a str stands for a number of a Keras optimizer.

    Keras checks few of them, so that others would fail in a step.
    """
    for name, parameter in inspect.signature(type(optimizer)).parameters.items():
        # Keras has checked the learning rate, and a graph cannot read it.
        number = type(parameter.default) in (int, float)
        if number and name != "learning_rate":
            value = getattr(optimizer, name, None)
            if isinstance(value, str):
                raise UserError(f"{name} must be a number. Received: {name}={value!r}")
    for name in _NUMBERS:
        if (value := getattr(optimizer, name)) is not None:
            check_range(name, value, "a number >= 0, or None", lambda x: x >= 0)


def check_optimizer(optimizer):
    """Checks the numbers of an optimizer, and that a train step ignores no option.

    Keras' own trainer scales losses, overwrites weights and counts updates. With
    another trainer such options change the result or do nothing. Raises a ValueError if
    a `keras.optimizers.Optimizer` has one, is a `LossScaleOptimizer`, or a number is
    none.
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
    check_numeric_options(optimizer)
