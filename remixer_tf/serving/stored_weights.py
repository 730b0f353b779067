"""A model's weights as an export stores them: in float32, or in half the size."""

import contextlib

import keras
import tensorflow as tf

from remixer_tf.errors import UserError

DTYPES = ("float32", "bfloat16", "float16")


class StoredWeights(tf.Module):
    """Holds a model's weights, for what `tf.saved_model.save` writes.

    The model is no attribute, since Keras would save it a second time in its own way.
    Weights of half the size are copies, cast back whenever they are read; the file
    does not have the model's own then. Integers stay as they are.

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
        """int, what the weights take in the file."""
        return sum(v.dtype.size * v.shape.num_elements() for v in self._variables)

    def reading(self):
        """A context in which the model reads these weights: where a graph is traced."""
        copies = [
            (weight, tf.cast(variable, weight.dtype))
            for weight, variable in self._pairs()
            if variable is not weight.value
        ]
        if not copies:
            return contextlib.nullcontext()
        return keras.StatelessScope(state_mapping=copies)


def _store(weight, dtype):
    """The `tf.Variable` that holds a weight in this type."""
    if dtype == "float32" or not tf.as_dtype(weight.dtype).is_floating:
        return weight.value
    value = tf.cast(weight.value, dtype)
    if not bool(tf.reduce_all(tf.math.is_finite(value))):
        raise UserError(
            f"{dtype} cannot hold {weight.path}: its values reach "
            f"{tf.reduce_max(tf.abs(weight.value)):.3g}. Store bfloat16 or float32."
        )
    return tf.Variable(value, trainable=False, name=weight.path)
