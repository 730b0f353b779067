"""The product of matrices over positions with every channel."""

import keras
from keras import ops

from remixer_tf.kernels import on_cpu


def reference(matrix, x):
    """See `mix`."""
    return ops.einsum("hts,hbcs->hbct", matrix, x)


def mix(matrix, x):
    """`M X` of each head, in columns and with its gradient written out on JAX.

    XLA on CPUs multiplies fastest with the positions as rows, `[length, batch *
    channels]`. JAX computes the gradient of such an X as a product that it then
    transposes; written out it is a product in the order of X.

    Chosen for: JAX on CPUs.
    Gain: 8% of Remixer small's step. It stays because JAX may take 1.15 of TensorFlow's
    time: it takes 1.08 with this kernel and 1.175 without. (`python -m
    benchmarks.training_step --models=remixer_small`, the CPU time of one core of an AMD
    EPYC, 2026-11-25.)

    `matrix` is float `[heads, targets, sources]`, x float `[heads, batch, channels,
    sources]`. Returns float `[heads, batch, channels, targets]`.
    """
    if keras.backend.backend() != "jax" or not on_cpu():
        return reference(matrix, x)
    from remixer_tf.kernels.linear_operation import linear_operation

    # Batch and channels stay two axes, which a mesh may split apart.
    product = linear_operation(
        lambda matrix, x: ops.einsum("hts,hsbc->htbc", matrix, x),
        lambda dy, matrix, x: ops.einsum("htbc,hsbc->hts", dy, x),
        lambda dy, matrix, x: ops.einsum("hts,htbc->hsbc", matrix, dy),
    )
    return ops.transpose(product(matrix, ops.transpose(x, (0, 3, 1, 2))), (0, 2, 3, 1))
