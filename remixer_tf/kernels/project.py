"""The product of every position with a kernel."""

import keras
from keras import ops

from remixer_tf.kernels.device import on_cpu


def reference(x, kernel):
    """See `project`."""
    return ops.matmul(x, kernel)


def project(x, kernel):
    """`X W`, whose gradient is written out on JAX.

    JAX computes the gradient of W as the transpose of `dY^T X`. For it XLA on CPUs
    moves dY, and multiplies at half the rate of `X^T dY`. Both are the same sum.

    Chosen for: JAX on CPUs.
    Gain: PROJECT_GAIN

    Args:
        x: float `[..., d_in]`.
        kernel: float `[d_in, d_out]`.

    Returns:
        float `[..., d_out]`.
    """
    if keras.backend.backend() != "jax" or not on_cpu():
        return reference(x, kernel)
    from remixer_tf.kernels.linear_operation import linear_operation

    axes = "abcegh"[: len(x.shape) - 1]  # of positions
    return linear_operation(
        reference,
        lambda dy, x, kernel: ops.matmul(dy, ops.transpose(kernel)),
        lambda dy, x, kernel: ops.einsum(f"{axes}d,{axes}f->df", x, dy),
    )(x, kernel)
