"""Adafactor with the semantics of Mesh TensorFlow, with which T5 was trained."""

from typing import Any, Unpack

import keras
from keras import ops

from remixer_tf.arguments import as_python
from remixer_tf.errors import check_integers, check_range
from remixer_tf.layers.axes import axes_of, make_named
from remixer_tf.optimizers.options import OptimizerKeywords, check_numeric_options

_DTYPE = "float32"  # of the slots and of every intermediate result
_EPSILON_1 = 1e-30  # keeps the second moment positive
_OPTIONS = (
    *("beta_1", "decay_exponent", "step_offset", "clipping_threshold", "epsilon_2"),
    *("min_dim_size_to_factor", "multiply_by_parameter_scale"),
)


@keras.saving.register_keras_serializable(package="remixer_tf")
class Adafactor(keras.optimizers.Optimizer):
    r"""Adam's second moment in the memory of a row and a column.

    With t = max(iterations - step_offset, 0), which is 0 at the first update:

        beta_2 = 1 - (t + 1)^-decay_exponent
        S      = G^2 + 1e-30
        R      = beta_2 R + (1 - beta_2) mean(S, largest axis)
        C      = beta_2 C + (1 - beta_2) mean(S, second largest axis)
        U      = G / sqrt(R C / mean(R, second largest axis))
        U      = U / max(1, RMS(U) / clipping_threshold)
        D      = learning_rate * max(epsilon_2, RMS(X)) * U
        X      = X - D,  or with beta_1:  M = beta_1 M + (1 - beta_1) D;  X = X - M

    Second moments are factored over the two largest axes of a variable if both have at
    least `min_dim_size_to_factor` entries; of equal axes, the first counts as the
    larger. The other axes are a batch of matrices. A smaller variable keeps its full
    second moment V = beta_2 V + (1 - beta_2) S, and U = G / sqrt(V). The state of a
    factored [n, m] matrix has n + m entries. A kernel of shape
    [d_model, num_heads, d_kv] with d_kv < 128 is therefore not factored.

    `keras.optimizers.Adafactor` is another algorithm: it keeps a full velocity, caps
    the learning rate at 1 / sqrt(step) and factors the last two axes of any size.

    Slots and arithmetic are float32, whatever the dtype of the variables.

    Source: Shazeer and Stern 2018, "Adafactor", Algorithms 4 to 6 and section 8;
    Mesh TensorFlow, `optimize.py`.

    Args:
        learning_rate: float, or a `keras.optimizers.schedules.LearningRateSchedule`,
            evaluated at `iterations`.
        beta_1: decay of the first moment, in [0, 1). 0 keeps none, and no slot for it.
        decay_exponent: how fast the second moment's decay nears 1, in (0, 1].
        step_offset: the value of `iterations` at which fine-tuning started, so that the
            second moment starts anew there; earlier steps count as step 0.
        clipping_threshold: the largest RMS of an update, or None.
        epsilon_2: the least parameter scale, so that zeros can be left.
        min_dim_size_to_factor: see above. 128 as in T5; a huge value factors nothing.
        multiply_by_parameter_scale: whether updates are relative to RMS(X). If not,
            D = learning_rate * U.
        **kwargs: `weight_decay`, `clipnorm` and the other arguments of
            `keras.optimizers.Optimizer`. `name`, the beginning of every slot's path, is
            "adafactor" by default.

    Raises:
        ValueError: an argument is outside its range.
    """

    def __init__(
        self,
        learning_rate: Any = 1e-3,
        beta_1: float = 0.0,
        decay_exponent: float = 0.8,
        step_offset: int = 0,
        clipping_threshold: float | None = 1.0,
        epsilon_2: float = 1e-3,
        min_dim_size_to_factor: int = 128,
        multiply_by_parameter_scale: bool = True,
        **kwargs: Unpack[OptimizerKeywords],
    ):
        kwargs = {"name": "adafactor"} | kwargs
        super().__init__(learning_rate=as_python(learning_rate), **kwargs)
        check_integers(0, step_offset=step_offset)
        check_integers(min_dim_size_to_factor=min_dim_size_to_factor)
        check_range("beta_1", beta_1, "in [0, 1)", lambda x: 0 <= x < 1)
        check_range("decay_exponent", decay_exponent, "in (0, 1]", lambda x: 0 < x <= 1)
        check_range("epsilon_2", epsilon_2, "> 0", lambda x: x > 0)
        clip = 1 if clipping_threshold is None else clipping_threshold
        check_range("clipping_threshold", clip, "> 0 or None", lambda x: x > 0)
        self.beta_1 = beta_1
        self.decay_exponent = decay_exponent
        self.step_offset = step_offset
        self.clipping_threshold = clipping_threshold
        self.epsilon_2 = epsilon_2
        self.min_dim_size_to_factor = min_dim_size_to_factor
        self.multiply_by_parameter_scale = multiply_by_parameter_scale
        check_numeric_options(self)

    def slot_axes(self, shape):
        """Returns {slot name: the axes of a variable of this shape that it keeps}."""
        every = tuple(range(len(shape)))
        slots = {"first_moment": every} if self.beta_1 else {}
        factored_axes = self._factored_axes(shape)
        if factored_axes is None:
            return slots | {"second_moment": every}
        for name, axis in zip(("row", "column"), factored_axes, strict=True):
            slots[f"second_moment_{name}"] = (*every[:axis], *every[axis + 1 :])
        return slots

    def build(self, variables):
        """Makes every slot; under a strategy, call it inside `strategy.scope()`."""
        if self.built:
            return
        super().build(variables)
        self._slots = [
            {
                slot: make_named(
                    self.add_variable,
                    tuple(axes_of(variable)[axis] for axis in axes),
                    tuple(variable.shape[axis] for axis in axes),
                    dtype=_DTYPE,
                    name=f"{variable.path.replace('/', '_')}_{slot}",
                )
                for slot, axes in self.slot_axes(variable.shape).items()
            }
            for variable in variables
        ]

    def apply(self, grads, trainable_variables=None):
        """Updates the variables, see Keras; sparse gradients are made dense.

        An embedding's on TensorFlow are IndexedSlices: the slices of an id that is
        there twice have to be summed before they are squared.
        """
        grads = [_dense(gradient) for gradient in grads]
        super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        """Applies one dense gradient to its variable; called by `apply`."""
        slots = self._slots[self._get_variable_index(variable)]
        difference, new = self.compute_update(
            gradient,
            ops.cast(variable, variable.dtype),
            {name: ops.cast(slot, _DTYPE) for name, slot in slots.items()},
            ops.cast(learning_rate, _DTYPE),
            ops.cast(self.iterations, self.iterations.dtype),
        )
        for name, value in new.items():
            self.assign(slots[name], value)
        self.assign_sub(variable, difference)

    def compute_update(self, gradient, value, slots, learning_rate, iterations):
        """Computes the update of one variable.

        It depends on its arguments alone, so that a trace serves all variables of a
        shape.

        Args:
            gradient, value: float arrays of one shape, the dense gradient and the
                variable.
            slots: dictionary of float32 arrays, see `slot_axes`.
            learning_rate: float32 scalar.
            iterations: int scalar.

        Returns:
            (D or M, slots): what the variable loses, and the new slots.
        """
        new = {}

        def average(name, moment, decay):
            """Moves a slot towards a moment."""
            new[name] = slots[name] * decay + moment * (1.0 - decay)
            return new[name]

        step = ops.cast(ops.maximum(iterations - self.step_offset, 0), _DTYPE)
        decay = 1.0 - ops.power(step + 1.0, -self.decay_exponent)
        gradient = ops.cast(gradient, _DTYPE)
        squared = ops.square(gradient) + _EPSILON_1
        factored_axes = self._factored_axes(value.shape)  # static, unlike gradients'
        if factored_axes is None:
            factor = ops.rsqrt(average("second_moment", squared, decay))
        else:
            largest, second = factored_axes
            row = ops.mean(squared, axis=largest)
            column = ops.mean(squared, axis=second)
            row = average("second_moment_row", row, decay)
            column = average("second_moment_column", column, decay)
            row = ops.expand_dims(row, largest)
            row = row / ops.mean(row, axis=second, keepdims=True)
            factor = ops.rsqrt(row) * ops.rsqrt(ops.expand_dims(column, second))
        update = gradient * factor
        if self.clipping_threshold is not None:
            update = update / ops.maximum(1.0, _rms(update) / self.clipping_threshold)
        rate = learning_rate
        if self.multiply_by_parameter_scale:
            scale = _rms(ops.cast(value, _DTYPE))
            rate = rate * ops.maximum(scale, self.epsilon_2)
        update = update * rate
        if self.beta_1:
            update = average("first_moment", update, self.beta_1)
        return ops.cast(update, value.dtype), new

    def get_config(self):
        """Returns the constructor's arguments, all of them serializable."""
        return super().get_config() | {name: getattr(self, name) for name in _OPTIONS}

    def _factored_axes(self, shape):
        """Returns (largest axis, second largest axis), or None if not factored."""
        if len(shape) < 2:
            return None
        largest, second = sorted(range(len(shape)), key=lambda axis: -shape[axis])[:2]
        return (
            (largest, second) if shape[second] >= self.min_dim_size_to_factor else None
        )


def _dense(gradient):
    if hasattr(gradient, "indices"):
        return ops.zeros(gradient.shape, gradient.dtype) + gradient
    return gradient


def _rms(x):
    return ops.sqrt(ops.mean(ops.square(x)))
