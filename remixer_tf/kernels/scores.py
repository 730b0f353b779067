"""The products of each query with each key."""

import keras
from keras import ops

from remixer_tf.kernels import on_cpu


def reference(query, key):
    """See `scores`."""
    return ops.einsum("bhtk,bhsk->bhts", query, key)


def scores(query, key):
    """`Q K^T`, the logits of attention, whose gradient is written out on JAX.

    The gradient of the keys is then a product with few rows (d_kv) and not with few
    columns, which XLA on CPUs multiplies slowly.

    Chosen for: JAX on CPUs.
    Gain: see `project`, with which it was measured.

    `query` is float `[batch, heads, length, d_kv]`, `key` float `[batch, heads,
    kv_length, d_kv]`. Returns float `[batch, heads, length, kv_length]`.
    """
    if keras.backend.backend() != "jax" or not on_cpu():
        return reference(query, key)
    from remixer_tf.kernels.linear_operation import linear_operation

    def of_key(dy, query, key):
        return ops.swapaxes(ops.einsum("bhtk,bhts->bhks", query, dy), 2, 3)

    return linear_operation(
        reference,
        lambda dy, query, key: ops.einsum("bhts,bhsk->bhtk", dy, key),
        of_key,
    )(query, key)
