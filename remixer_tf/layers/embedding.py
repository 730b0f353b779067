"""Logits that share the token embedding's matrix."""

import keras
from keras import ops


class TiedLogits(keras.layers.Layer):
    """A vocabulary's logits by comparison with its vectors: `scale x E^T`.

    A layer of its own, since the dtype of a layer is that in which it reads weights:
    this one reads E in float32 whatever the model computes in. `scale` is a float;
    T5.1.0 has d_model ** -0.5, BERT 1.

    A call takes x, float `[..., d_model]`, and `embedding`, a built
    `keras.layers.Embedding` whose table E is `[vocab_size, d_model]`. It returns
    float32 `[..., vocab_size]`.
    """

    def __init__(self, scale=1.0, **kwargs):
        super().__init__(**{**kwargs, "dtype": "float32"})
        self.scale = scale

    def call(self, x, embedding):
        return ops.matmul(x * self.scale, _transposed(embedding))

    def matrix(self, embedding):
        """`scale E^T`, float32 `[d_model, vocab_size]`."""
        return self.scale * _transposed(embedding)


def _transposed(embedding):
    return ops.transpose(ops.convert_to_tensor(embedding.embeddings))
