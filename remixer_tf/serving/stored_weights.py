"""A model's weights as an export stores them: float32 or half the size."""

import contextlib

import keras
import tensorflow as tf

from remixer_tf.errors import UserError

DTYPES = ("float32", "bfloat16", "float16")


class StoredWeights(tf.Module):
    """Holds the weights that `tf.saved_model.save` writes.

    Weights of half the size are copies, cast back whenever they are read. Integers keep
    their type. The model is no attribute, or Keras would save it too.

    Args:
        model: a built `keras.Model`.
        dtype: str, one of `DTYPES`.

    Raises:
        ValueError: an unknown dtype, or one that cannot hold a weight (float16 ends at
            65,504).
    """

    def __init__(self, model, dtype="float32"):
        super().__init__(name="stored_weights")
        if dtype not in DTYPES:
            raise UserError(
                f"Weights are stored as one of {DTYPES}. Received: {dtype!r}"
            )
        self._variables = [_store(weight, dtype) for weight in model.weights]
        self._pairs = lambda: zip(model.weights, self._variables, strict=True)

    @property
    def num_bytes(self):
        """The bytes of the weights in the file, an int."""
        return sum(v.dtype.size * v.shape.num_elements() for v in self._variables)

    def reading(self):
        """Returns a context for tracing: in it the model reads these weights."""
        copies = [
            (weight, tf.cast(variable, weight.dtype))
            for weight, variable in self._pairs()
            if variable is not weight.value
        ]
        if not copies:
            return contextlib.nullcontext()
        return keras.StatelessScope(state_mapping=copies)


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
