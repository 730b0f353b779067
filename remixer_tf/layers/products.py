"""Products with gradients that XLA multiplies fast on CPUs."""

import keras
from keras import ops


class Dense(keras.layers.Dense):
    """`act(X W + b)`: Keras' layer, by `project`."""

    def call(self, inputs):
        y = project(inputs, self.kernel)
        if self.bias is not None:
            y = ops.add(y, self.bias)
        return y if self.activation is None else self.activation(y)


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


def scores(query, key):
    """The products of each query with each key, the logits of attention.

    On JAX with a gradient of its own, for which see `project`: the keys' is a product
    with few rows, d_kv, and not one with few columns.

    Args:
        query: float `[batch, heads, length, d_kv]`.
        key: float `[batch, heads, kv_length, d_kv]`.

    Returns:
        float `[batch, heads, length, kv_length]`.
    """
    if keras.backend.backend() != "jax":
        return _scores(query, key)
    return _scores_on_jax(query, key)


def _scores(query, key):
    return ops.einsum("bhtk,bhsk->bhts", query, key)


@ops.custom_gradient
def _scores_on_jax(query, key):
    def gradient(dy):
        d_key = ops.einsum("bhtk,bhts->bhks", query, dy)
        return ops.einsum("bhts,bhsk->bhtk", dy, key), ops.swapaxes(d_key, 2, 3)

    return _scores(query, key), gradient


def mix(matrix, x, axes):
    """The product of a matrix over positions with each channel.

    On JAX with a gradient of its own, for which see `project`: JAX' rule gives that of
    x, unless its length comes last, as a product that is then transposed. Batch and
    channels stay two axes, which a mesh may split apart.

    Args:
        matrix: float `[heads, targets, sources]`.
        x: float, batch, sources, heads and channels of a head, in the order of `axes`.
        axes: str, an initial for each, l for the sources: "hbcl", "hlbc".

    Returns:
        float, the shape of x, with targets for sources.
    """
    source, target = axes.replace("l", "s"), axes.replace("l", "t")
    if keras.backend.backend() != "jax":
        return ops.einsum(f"hts,{source}->{target}", matrix, x)

    @ops.custom_gradient
    def product(matrix, x):
        def gradient(dy):
            return (
                ops.einsum(f"{target},{source}->hts", dy, x),
                ops.einsum(f"hts,{target}->{source}", matrix, dy),
            )

        return ops.einsum(f"hts,{source}->{target}", matrix, x), gradient

    return product(matrix, x)


def repeat(x, batch_size):
    """The same for each example: what is added to the logits of all.

    On JAX with a gradient of its own, a product with ones: the sum over the first axis
    as XLA compiles it for CPUs is slow, and ten times slower still with two threads.

    Args:
        x: float `[1, ...]`.
        batch_size: int.

    Returns:
        float `[batch_size, ...]`; x itself on TensorFlow, whose sums broadcast it.
    """
    if keras.backend.backend() != "jax":
        return x

    @ops.custom_gradient
    def repeated(x):
        def gradient(dy):
            ones = ops.ones((1, batch_size), dy.dtype)
            return ops.tensordot(ones, dy, axes=1)

        return ops.broadcast_to(x, (batch_size, *x.shape[1:])), gradient

    return repeated(ops.convert_to_tensor(x))
