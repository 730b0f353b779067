"""Sums over a window of tokens around each, and their caches while decoding.

A kernel has k numbers: in a decoder the last is that of the token itself, in an encoder
number `k // 2`. Kernels are float `[batch or 1, length or 1, heads, k]`; a head has an
equal share of successive channels.
"""

from keras import ops


def tokens_before(size, causal):
    """How many of a kernel's tokens come before its own, an int."""
    return size - 1 if causal else size // 2


def convolve(x, kernels, causal, context):
    """`Y[t] = sum_j K[t, j] X[t + j - before]` in each head; other tokens are hidden.

    A sum of k shifted products, which XLA computes in one loop. x is float `[batch,
    length, channels]`; padding, other packed examples and places outside of the row
    count as zeros. Returns float of the shape and dtype of x.
    """
    (length, channels), (heads, size) = x.shape[1:], kernels.shape[-2:]
    if context.padding_mask is not None:
        x = x * ops.cast(context.padding_mask, x.dtype)[:, :, None]
    kernels = ops.cast(kernels, x.dtype)
    before = tokens_before(size, causal)
    outside = [before, size - 1 - before]
    x = ops.pad(x, [[0, 0], outside, [0, 0]])
    ids = context.segment_ids
    if ids is not None:
        around = ops.pad(ids, [[0, 0], outside])
    total = None
    for j in range(size):
        there = x[:, j : j + length]
        if ids is not None:
            same = ops.equal(around[:, j : j + length], ids)
            there = there * ops.cast(same, x.dtype)[:, :, None]
        there = ops.reshape(there, (-1, length, heads, channels // heads))
        part = kernels[..., j, None] * there
        total = part if total is None else total + part
    return ops.reshape(total, (-1, length, channels))


def empty_window(batch_size, size, channels, dtype):
    """The cache before the first token: zeros `[batch, size, channels]`."""
    return ops.zeros((batch_size, size, channels), dtype)


def next_window(window, x):
    """The last inputs, with x `[batch, 1, channels]` behind them."""
    return ops.concatenate([window[:, 1:], ops.cast(x, window.dtype)], axis=1)


def window_at(x, step, window):
    """The last inputs before position `step` of a prompt `[batch, width, channels]`."""
    size = window.shape[1]
    x = ops.pad(x, [[0, 0], [size, 0], [0, 0]])
    x = ops.take(x, step + ops.arange(size, dtype="int32"), axis=1)
    return ops.cast(x, window.dtype)


def read_window(window, kernels):
    """The sum at the last token of a window: float `[batch, 1, channels]`.

    `kernels` has one position: `[batch or 1, 1, heads, k]`.
    """
    (size, channels), heads = window.shape[1:], kernels.shape[-2]
    window = ops.reshape(window, (-1, size, heads, channels // heads))
    kernels = ops.transpose(kernels[:, 0], (0, 2, 1))[..., None]
    total = ops.sum(window * ops.cast(kernels, window.dtype), axis=1)
    return ops.reshape(total, (-1, 1, channels))


def band(kernels, length, causal):
    """Kernels as matrices for pictures: float32 `[batch or 1, heads, length, length]`.

    Row t has K[t, j] at source `t + j - before`.
    """
    size = kernels.shape[-1]
    places = ops.arange(length)
    j = places[None, :] - places[:, None] + tokens_before(size, causal)
    inside = ops.logical_and(j >= 0, j < size)
    kernels = ops.transpose(ops.cast(kernels, "float32"), (0, 2, 1, 3))
    kernels = ops.broadcast_to(kernels, (*ops.shape(kernels)[:2], length, size))
    found = ops.take_along_axis(kernels, ops.clip(j, 0, size - 1)[None, None], axis=-1)
    return ops.where(inside, found, 0.0)
