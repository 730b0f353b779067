"""Dynamic loss scaling, which keeps small gradients above float16's underflow."""

import keras
from keras import ops

LARGEST = 2.0**24


class LossScale:
    """The factor of the loss that float16 trains with, and the count that adapts it.

    A step multiplies its loss by the scale, and divides the float32 gradients by it:

        scale = max(scale / 2, 1)       after a step that was not finite,
        scale = min(2 scale, 2^24)      after every `growth_steps` finite steps.

    The optimizer sees the true gradients. So any optimizer serves, with clipping and
    averages of weights. `keras.optimizers.LossScaleOptimizer` would clip and report the
    scaled gradients, has two variables of one path, and no bounds.

    Source: Micikevicius et al. 2018, "Mixed Precision Training", section 3.2.

    `initial` is a float, the scale of the first step.

    Attributes:
        growth_steps: int, the argument, see above.
        scale: float32 `keras.Variable`.
        finite_steps: int32 `keras.Variable`, the finite steps since the last change.

    Examples:

    >>> scale = LossScale(initial=8.0, growth_steps=2)
    >>> values, _ = scale.after([8.0, 1], updated=True, finite=True, objective=0.5)
    >>> [float(value) for value in values]
    [16.0, 0.0]
    """

    def __init__(self, initial=2.0**15, growth_steps=2000):
        self.growth_steps = growth_steps
        self.scale = _variable(initial, "float32", "scale")
        self.finite_steps = _variable(0, "int32", "finite_steps")

    @property
    def variables(self):
        """The list of both variables."""
        return [self.scale, self.finite_steps]

    def after(self, values, updated, finite, objective):
        """Computes the values of `variables` after a step.

        Args:
            values: list of their values in the step.
            updated: bool scalar, whether the step changed the weights.
            finite: bool scalar, whether objective and gradients were finite.
            objective: float32 scalar, before scaling.

        Returns:
            (values, overflowed): the new list, and a bool scalar, whether a smaller
            scale may help: gradients were not finite, the objective was, and the scale
            was above 1.
        """
        scale, count = values
        finite = ops.convert_to_tensor(finite, "bool")
        count = ops.cast(count, "int32") + ops.cast(updated, "int32")
        grows = ops.logical_and(finite, count >= self.growth_steps)
        overflowed = ops.logical_and(ops.isfinite(objective), scale > 1.0)
        overflowed = ops.logical_and(overflowed, ops.logical_not(finite))
        larger, smaller = ops.minimum(2.0 * scale, LARGEST), ops.maximum(scale / 2, 1.0)
        scale = ops.where(finite, ops.where(grows, larger, scale), smaller)
        resets = ops.logical_or(grows, ops.logical_not(finite))
        return [scale, ops.where(resets, 0, count)], overflowed


def loss_scale_for(dtype_policy):
    """Returns the `LossScale` that a dtype policy needs, or None."""
    return LossScale() if dtype_policy == "mixed_float16" else None


def _variable(value, dtype, name):
    return keras.Variable(
        value,
        dtype=dtype,
        trainable=False,
        autocast=False,
        aggregation="only_first_replica",
        name=name,
    )
