"""Schedule-free AdamW, whose averages are what evaluation takes."""

from typing import Unpack

import keras
from keras import ops

from remixer_tf.arguments import as_python
from remixer_tf.errors import UserError, check_integers, check_range
from remixer_tf.optimizers.options import OptimizerKeywords, check_numeric_options


@keras.saving.register_keras_serializable(package="remixer_tf")
class ScheduleFreeAdamW(keras.optimizers.Optimizer):
    """AdamW whose learning rate needs no schedule (Defazio et al., 2024).

    Gradients are taken at the model's weights y, between the iterates z and their
    average x (https://arxiv.org/abs/2405.15682, with the bias correction of the
    authors' code). At step t, with r_t = learning_rate min(1, t / warmup_steps):

        z = z - r_t g / (sqrt(v / (1 - beta_2^t)) + epsilon) - r_t weight_decay y
        c = r_t^2 / (r_1^2 + ... + r_t^2)
        x = (1 - c) x + c z
        y = (1 - beta_1) z + beta_1 x

    x is the optimizer's average of the weights (`use_ema`), which evaluation and export
    take. `keras.optimizers.ScheduleFreeAdamW` keeps no x, and in Keras 3.15 on
    TensorFlow it computes x from the new z in place of the old one.

    Args:
        learning_rate: float, without a schedule.
        beta_1, beta_2, epsilon: floats.
        warmup_steps: int.
        **kwargs: `weight_decay` and the other arguments of
            `keras.optimizers.Optimizer`.

    Raises:
        ValueError: the learning rate is a schedule, or an argument is outside its
            range.

    Examples:

    >>> optimizer = ScheduleFreeAdamW(1e-3, warmup_steps=100)
    """

    def __init__(
        self,
        learning_rate: float = 0.0025,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        warmup_steps: int = 0,
        **kwargs: Unpack[OptimizerKeywords],
    ):
        learning_rate = as_python(learning_rate)
        if not isinstance(learning_rate, (int, float)):
            raise UserError(
                "ScheduleFreeAdamW takes a number as learning_rate, and warmup_steps "
                f"in place of a schedule. Received: learning_rate={learning_rate!r}"
            )
        check_range("learning_rate", learning_rate, ">= 0", lambda x: x >= 0)
        check_range("beta_1", beta_1, "in [0, 1]", lambda x: 0 <= x <= 1)
        check_range("beta_2", beta_2, "in [0, 1)", lambda x: 0 <= x < 1)
        check_range("epsilon", epsilon, "> 0", lambda x: x > 0)
        check_integers(0, warmup_steps=warmup_steps)
        super().__init__(learning_rate, **kwargs | {"use_ema": True})
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.warmup_steps = warmup_steps
        check_numeric_options(self)

    def build(self, variables):
        """Makes the slots: z, v, and x, which Keras calls the average."""
        if self.built:
            return
        super().build(variables)
        names = ["iterate", "velocity"]
        self._iterates, self._velocities = self.add_optimizer_variables(
            variables, names
        )

    def update_step(self, gradient, variable, learning_rate):
        """Updates x, y, z and v of a variable."""
        index = self._get_variable_index(variable)
        x, z, v = (
            self._model_variables_moving_average[index],
            self._iterates[index],
            self._velocities[index],
        )
        t = ops.cast(self.iterations + 1, "float32")
        warm = ops.minimum(t, float(max(self.warmup_steps, 1)))
        rate = learning_rate * warm / max(self.warmup_steps, 1)
        # The sum of squares until `warm`, and then of equal ones.
        squares = warm * (warm + 1) * (2 * warm + 1) / 6 + (t - warm) * warm**2
        share = warm**2 / squares

        # All is read before anything is written. Both begin at the first weights.
        y = ops.convert_to_tensor(variable)
        old_x, old_z = (
            ops.where(self.iterations == 0, y, ops.convert_to_tensor(slot))
            for slot in (x, z)
        )
        new_v = self.beta_2 * v + (1 - self.beta_2) * ops.square(gradient)
        step = gradient / (
            ops.sqrt(new_v / (1 - ops.power(self.beta_2, t))) + self.epsilon
        )
        if self.weight_decay is not None and self._use_weight_decay(variable):
            step += self.weight_decay * y
        new_z = old_z - rate * step
        new_x = (1 - share) * old_x + share * new_z
        new_y = (1 - self.beta_1) * new_z + self.beta_1 * new_x
        for slot, value in ((x, new_x), (z, new_z), (v, new_v), (variable, new_y)):
            self.assign(slot, value)

    def _apply_weight_decay(self, variables):
        """Does nothing: `update_step` decays z, and Keras would decay y."""

    def _update_model_variables_moving_average(self, trainable_variables):
        """Does nothing: `update_step` does."""

    def get_config(self):
        """Returns the arguments of a copy."""
        names = ("beta_1", "beta_2", "epsilon", "warmup_steps")
        return super().get_config() | {name: getattr(self, name) for name in names}
