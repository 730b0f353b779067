"""Sums over a window of tokens around each, and their caches while decoding.

A kernel has k numbers: in a decoder the last is that of the token itself, in an encoder
number `k // 2`. Kernels are float `[batch or 1, length or 1, heads, k]`; a head has an
equal share of successive channels.
"""

from keras import ops

from remixer_tf.layers.base import by_row


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
    """The cache before the first token: zeros `[batch, size, channels]`.

    Position p is entry `p % size`, so that a step that is taken again changes nothing.
    """
    return ops.zeros((batch_size, size, channels), dtype)


def next_window(window, x, state):
    """The cache with x `[batch, 1, channels]`, of the step of a `DecodeState`."""
    size = window.shape[1]
    here = ops.equal(by_row(state.step) % size, ops.arange(size, dtype="int32"))
    return ops.where(here[:, :, None], ops.cast(x, window.dtype), window)


def window_at(x, state, window):
    """The cache after a prompt x `[batch, width, channels]` of `state.step` tokens."""
    size, last = window.shape[1], by_row(state.step) - 1
    entries = ops.arange(size, dtype="int32")
    place = last - (last + size - entries) % size  # below 0: no token
    here = ops.equal(place[:, :, None], ops.arange(x.shape[1], dtype="int32"))
    return ops.matmul(ops.cast(here, window.dtype), ops.cast(x, window.dtype))


def read_window(window, kernels, state):
    """The sum at a step, whose token is in the window: `[batch, 1, channels]`.

    `kernels` has one position: `[batch or 1, 1, heads, k]`.
    """
    (size, channels), heads = window.shape[1:], kernels.shape[-2]
    entries = ops.arange(size, dtype="int32")
    ago = (by_row(state.step) + size - entries) % size  # tokens back, of each entry
    taken = ops.equal(size - 1 - ago[:, :, None], entries)  # [1 or batch, entry, k]
    kernels = ops.cast(ops.transpose(kernels[:, 0], (0, 2, 1)), window.dtype)
    kernels = ops.matmul(ops.cast(taken, window.dtype), kernels)
    window = ops.reshape(window, (-1, size, heads, channels // heads))
    return ops.reshape(ops.sum(window * kernels[..., None], axis=1), (-1, 1, channels))


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
