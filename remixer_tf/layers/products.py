"""The product of a projection, with a gradient that XLA multiplies fast on CPUs."""

import keras
from keras import ops


class Dense(keras.layers.Dense):
    """`Y = X W + b`: Keras' layer without an activation, by `project`."""

    def call(self, inputs):
        y = project(inputs, self.kernel)
        return y if self.bias is None else ops.add(y, self.bias)


def project(x, kernel):
    """The product of every position with a kernel.

    On JAX with a gradient of its own: JAX' rule gives the kernel's as the transpose of
    `dY^T X`, for which XLA on CPUs moves dY, and multiplies at half the rate of `X^T
    dY`. It is the same sum.

    Args:
        x: float `[..., d_in]`.
        kernel: float `[d_in, d_out]`.

    Returns:
        float `[..., d_out]`.
    """
    if keras.backend.backend() != "jax":
        return ops.matmul(x, kernel)
    return _project(ops.convert_to_tensor(x), ops.convert_to_tensor(kernel))


@ops.custom_gradient
def _project(x, kernel):
    positions = "abcegh"[: len(x.shape) - 1]

    def gradient(dy):
        return (
            ops.matmul(dy, ops.transpose(kernel)),
            ops.einsum(f"{positions}d,{positions}f->df", x, dy),
        )

    return ops.matmul(x, kernel), gradient
