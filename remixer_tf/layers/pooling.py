"""From a sequence to one vector."""

import keras
from keras import ops

from remixer_tf.errors import UserError


class MeanPooling(keras.layers.Layer):
    """The mean over an example's real tokens.

    Over token embeddings, with a classifier on top, it is SuperGLUE's bag of words
    baseline (CBoW).

    Call arguments:
        x: float `[batch, length, channels]`.
        context: a `Context`; `padding_mask` marks the real tokens, None: all.

    Returns:
        float `[batch, channels]`, summed in float32; 0 where an example has no token.

    Raises:
        ValueError: for packed examples.
    """

    def call(self, x, context):
        if context.segment_ids is not None:
            raise UserError(
                "The mean over a row would mix packed examples. Received: "
                "segment_ids. Train with packing off."
            )
        mask = context.padding_mask
        x = ops.cast(x, "float32")
        if mask is None:
            return ops.cast(ops.mean(x, axis=1), self.compute_dtype)
        mask = ops.cast(mask, "float32")[:, :, None]
        count = ops.maximum(ops.sum(mask, axis=1), 1.0)
        return ops.cast(ops.sum(x * mask, axis=1) / count, self.compute_dtype)
