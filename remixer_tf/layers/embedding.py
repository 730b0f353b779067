"""Logits that share the token embedding's matrix."""

from keras import ops


def tied_logits(embedding, x, scale=1.0):
    """The logits of a vocabulary by comparison with its vectors: `scale x E^T`.

    Args:
        embedding: a built `keras.layers.Embedding`; its table E is `[vocab_size,
            d_model]`.
        x: float `[..., d_model]`.
        scale: float; T5.1.0 has d_model ** -0.5, BERT 1.

    Returns:
        float32 `[..., vocab_size]`. E is read in the compute dtype of the layer that
        calls: in float32 where that is float32.
    """
    table = ops.cast(embedding.embeddings, "float32")
    return ops.matmul(ops.cast(x, "float32") * scale, ops.transpose(table))
