"""A model's weights as an export stores them: float32, half or a quarter of it."""

import contextlib
import itertools

import keras
import tensorflow as tf

from remixer_tf.errors import UserError, check_choices
from remixer_tf.serving.int8 import check_finite, matrices, quantize, shared_axes

DTYPES = ("float32", "bfloat16", "float16", "int8")


class StoredWeights(tf.Module):
    """Holds the weights of a built model that `tf.saved_model.save` writes.

    Smaller weights are copies, cast back whenever they are read. int8 has a float32
    scale for each channel, and leaves some weights in float32, see `shared_axes`.
    Integers keep their type. The model is no attribute, or Keras would save it too.

    `dtype` is one of `DTYPES`. Others are a ValueError, and one that cannot hold a
    weight: float16 ends at 65,504; int8 has no NaN and no infinity.

    Attributes:
        check_finite, matrices: functions of no arguments, those of `int8` of the model.
        matrix_weights: function of no arguments, the model's weights of two axes.
    """

    def __init__(self, model, dtype="float32"):
        super().__init__(name="stored_weights")
        check_choices(DTYPES, weights=dtype)
        axes = {}
        if dtype == "int8":
            check_finite(model)
            axes = shared_axes(model)
        self._stored = [
            _store_integers(weight, axes[weight.path])
            if weight.path in axes
            else [_store(weight, "float32" if dtype == "int8" else dtype)]
            for weight in model.weights
        ]
        pairs = zip(model.weights, self._stored, strict=True)
        copied = [(w, stored) for w, stored in pairs if stored[0] is not w.value]
        self._copied = lambda: copied
        self.matrices = lambda: matrices(model)
        self.matrix_weights = lambda: [w for w in model.weights if len(w.shape) == 2]
        self.check_finite = lambda: check_finite(model)

    @property
    def num_bytes(self):
        """The bytes of the weights in the file, an int."""
        variables = itertools.chain(*self._stored)
        return sum(v.dtype.size * v.shape.num_elements() for v in variables)

    def reading(self):
        """Returns a context for tracing: in it the model reads these weights."""
        if not self._copied():
            return contextlib.nullcontext()
        return keras.StatelessScope(
            [(weight, _read(stored, weight.dtype)) for weight, stored in self._copied()]
        )


def _read(stored, dtype):
    """Returns the tensor of a weight: the variable, or integers times their scale."""
    value, *scales = stored
    for scale in scales:
        value = tf.cast(value, scale.dtype) * scale
    return tf.cast(value, dtype)


def _store(weight, dtype):
    """Returns a `tf.Variable` with a weight in this type."""
    if dtype == "float32" or not tf.as_dtype(weight.dtype).is_floating:
        return weight.value
    value = tf.cast(weight.value, dtype)
    if not bool(tf.reduce_all(tf.math.is_finite(value))):
        raise UserError(
            f"{dtype} cannot hold {weight.path}: its values reach "
            f"{tf.reduce_max(tf.abs(weight.value)):.3g}. Store bfloat16 or float32."
        )
    return tf.Variable(value, trainable=False, name=weight.path)


def _store_integers(weight, axis):
    """Returns two `tf.Variable`s in a list: the integers and the scales of a weight."""
    return [
        tf.Variable(value, trainable=False, name=weight.path + end)
        for value, end in zip(
            quantize(weight.numpy(), axis), ("", "_scale"), strict=True
        )
    ]
