"""Learning-rate schedules, under the names that T5's users know.

Every schedule is a function of t = max(step - step_offset, 0), where `step` is the
optimizer's `iterations` (0 at the first update) and `step_offset` is the step at which
fine-tuning started. Warm-up is linear from 0 at t = 0 to the peak at t = warmup_steps,
so that the first update of a schedule with warm-up changes nothing. All raise
ValueError for an argument outside its range.
"""

import dataclasses
import math
from typing import Annotated

import keras
from keras import ops

from remixer_tf.arguments import NonNegativeInt, PositiveInt, check_fields, within
from remixer_tf.errors import UserError

_Positive = Annotated[float, within("a number > 0", lambda x: x > 0)]
_NonNegative = Annotated[float, within("a number >= 0", lambda x: x >= 0)]
_register = keras.saving.register_keras_serializable(package="remixer_tf")


class _Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule whose arguments are the fields of a dataclass."""

    def __post_init__(self):
        check_fields(self)

    def __call__(self, step):
        """Returns the learning rate at this step, a float32 scalar."""
        step = ops.maximum(ops.subtract(step, self.step_offset), 0)
        return self._value(ops.cast(step, "float32"))

    def get_config(self):
        """Returns the constructor's arguments."""
        return dataclasses.asdict(self)

    def _warmup(self, step):
        if self.warmup_steps == 0:
            return ops.ones_like(step)
        return ops.minimum(1.0, step / self.warmup_steps)


@_register
@dataclasses.dataclass(eq=False)
class TruncatedRsqrt(_Schedule):
    """T5's pre-training schedule: constant at first, then 1 / sqrt(t).

    multiplier / sqrt(max(t, warmup_steps)). Known as `truncated_rsqrt` in Mesh
    TensorFlow, as `rsqrt_no_ramp_down` in T5's gin files, and as `rsqrt_decay` in T5X.

    Args:
        warmup_steps: integer >= 1, the steps before the decay; there is no ramp.
        multiplier: positive float. With 1 the peak is 1 / sqrt(warmup_steps).
        step_offset: see the module.
    """

    warmup_steps: PositiveInt = 10_000
    multiplier: _Positive = 1.0
    step_offset: NonNegativeInt = 0

    def _value(self, step):
        return self.multiplier * ops.rsqrt(ops.maximum(step, self.warmup_steps))


@_register
class WarmupRsqrt(TruncatedRsqrt):
    """`TruncatedRsqrt` with a linear ramp to the same peak.

    multiplier * min(1, t / warmup_steps) / sqrt(max(t, warmup_steps)). Known as
    `linear_warmup * rsqrt_decay` in T5X. The arguments are the same.
    """

    def _value(self, step):
        return self._warmup(step) * super()._value(step)


@_register
@dataclasses.dataclass(eq=False)
class WarmupConstant(_Schedule):
    """T5's fine-tuning schedule, constant, after an optional linear warm-up.

    learning_rate * min(1, t / warmup_steps).

    Args:
        learning_rate: positive float; T5 fine-tunes with 1e-3.
        warmup_steps: integer >= 0; 0 is no warm-up.
        step_offset: see the module.
    """

    learning_rate: _Positive = 1e-3
    warmup_steps: NonNegativeInt = 0
    step_offset: NonNegativeInt = 0

    def _value(self, step):
        return self.learning_rate * self._warmup(step)


@_register
@dataclasses.dataclass(eq=False)
class WarmupLinearDecay(_Schedule):
    """Linear warm-up to the peak, then a straight line down.

    As transformers' `get_linear_schedule_with_warmup`. BERT's code has the same ramp,
    but its line starts at step 0, so that the rate after the warm-up is below the peak.

    With p = clip((t - warmup_steps) / (total_steps - warmup_steps), 0, 1):
    min(1, t / warmup_steps) * (end + (learning_rate - end) * (1 - p)).

    Args:
        learning_rate: positive float, the peak.
        total_steps: integer > warmup_steps, counted from the start (or from
            `step_offset`), warm-up included. After it the rate stays at the end's.
        warmup_steps: integer >= 0; 0 is no warm-up.
        end_learning_rate: float in [0, learning_rate].
        step_offset: see the module.
    """

    learning_rate: _Positive
    total_steps: NonNegativeInt
    warmup_steps: NonNegativeInt = 0
    end_learning_rate: _NonNegative = 0.0
    step_offset: NonNegativeInt = 0

    def __post_init__(self):
        super().__post_init__()
        if self.total_steps <= self.warmup_steps:
            raise UserError(
                "total_steps must be more than warmup_steps, between which the rate "
                f"falls. Received: total_steps={self.total_steps}, warmup_steps="
                f"{self.warmup_steps}. Train for longer, or warm up for less "
                "(in gin files of runs TRAIN_STEPS, WARMUP_STEPS)."
            )
        if self.end_learning_rate > self.learning_rate:
            raise UserError(
                "end_learning_rate must not exceed learning_rate. Received: "
                f"end_learning_rate={self.end_learning_rate}, "
                f"learning_rate={self.learning_rate}"
            )

    def _value(self, step):
        decay_steps = self.total_steps - self.warmup_steps
        progress = ops.clip((step - self.warmup_steps) / decay_steps, 0.0, 1.0)
        decrease = self.learning_rate - self.end_learning_rate
        rate = self.end_learning_rate + decrease * self._remainder(progress)
        return self._warmup(step) * rate

    def _remainder(self, progress):
        return 1.0 - progress


@_register
class WarmupCosineDecay(WarmupLinearDecay):
    """Linear warm-up to the peak, then half a cosine down.

    `WarmupLinearDecay` with (1 + cos(pi p)) / 2 in the place of 1 - p. It is
    `keras.optimizers.schedules.CosineDecay` with `total_steps` counted from the start.
    The arguments are those of `WarmupLinearDecay`.
    """

    def _remainder(self, progress):
        return 0.5 * (1.0 + ops.cos(math.pi * progress))
