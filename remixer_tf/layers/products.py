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
    positions = "abcegh"[: len(x.shape) - 1]
    return _product(
        ops.matmul,
        lambda dy, x, kernel: ops.matmul(dy, ops.transpose(kernel)),
        lambda dy, x, kernel: ops.einsum(f"{positions}d,{positions}f->df", x, dy),
    )(x, kernel)


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

    def of_key(dy, query, key):
        return ops.swapaxes(ops.einsum("bhtk,bhts->bhks", query, dy), 2, 3)

    return _product(
        lambda query, key: ops.einsum("bhtk,bhsk->bhts", query, key),
        lambda dy, query, key: ops.einsum("bhts,bhsk->bhtk", dy, key),
        of_key,
    )(query, key)


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
    return _product(
        lambda matrix, x: ops.einsum(f"hts,{source}->{target}", matrix, x),
        lambda dy, matrix, x: ops.einsum(f"{target},{source}->hts", dy, x),
        lambda dy, matrix, x: ops.einsum(f"hts,{target}->{source}", matrix, dy),
    )(matrix, x)


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
    return _product(
        lambda x: ops.broadcast_to(x, (batch_size, *x.shape[1:])),
        lambda dy, x: ops.tensordot(ops.ones((1, batch_size), dy.dtype), dy, axes=1),
    )(x)


def _product(function, *gradients):
    """The function, on JAX with these gradients; see `linear_operation`."""
    if keras.backend.backend() != "jax":
        return function
    from remixer_tf.layers.jax_linear import linear_operation

    product = linear_operation(function, *gradients)
    return lambda *factors: product(*map(ops.convert_to_tensor, factors))
