"""What static mixing remembers while decoding, and the sums it makes ahead of time."""

from keras import ops

# The cache's channels are padded to a multiple of so many: where rows do not begin at a
# vector's boundary, XLA's products on CPUs take 2.5 times as long.
VECTOR = 32

# A static matrix is known before its inputs. Of so many steps at once, the first makes
# the sums of all that came before; each then reads these and the inputs since, and not
# the whole cache.
WINDOW = 8


def make_mixing_cache(rows, heads, channels, length, dtype):
    """An empty cache.

    Args:
        rows: int or int32 scalar, rows that are decoded.
        heads, channels: ints, matrices, and channels of each.
        length: int, the number of positions that will be decoded.
        dtype: str.

    Returns:
        a dictionary: `inputs`, `[rows * heads, length, channels, padded]`, those before
        the window; and `window`, with `2 WINDOW` for `length`, first the sums over
        `inputs` for each step of the window, then the inputs of the window. The first
        axis is of examples, heads and hypotheses, in this order: one axis, as with an
        axis of one head XLA copies the cache at every step.
    """
    width = -(-channels // VECTOR) * VECTOR
    return {
        name: ops.zeros((rows * heads, places, width), dtype)
        for name, places in (("inputs", length), ("window", 2 * WINDOW))
    }


def mix_step(x, cache, state, matrix_rows):
    """Mixes position `state.step` with those before it.

    All hypotheses of an example and head are one matrix in the products, their places
    one after the other: `[examples * heads, hypotheses * places, channels]`. What is
    multiplied is written in that shape too. Of another shape XLA would write it twice,
    for the product and for the cache, and so copy the cache at every step.

    Args:
        x: float `[rows, heads, channels]`.
        cache: see `make_mixing_cache`.
        state: a `DecodeState`.
        matrix_rows: a function of int32 positions `[n]` that gives their rows of M,
            causal: float32 `[heads, n, length]`. Of positions beyond the last any.

    Returns:
        float, the shape of x, and the new cache.
    """
    _, heads, channels = x.shape
    _, length, width = cache["inputs"].shape
    ancestry = state.ancestry
    hypotheses = 1 if ancestry is None else ancestry.shape[1]
    inputs, window = (
        ops.reshape(cache[name], (-1, hypotheses * places, width))
        for name, places in (("inputs", length), ("window", 2 * WINDOW))
    )
    place = state.step % WINDOW
    start = state.step - place
    # A loop of at most one turn, and not a condition, which ONNX's converter breaks. In
    # there `turn` is 0: XLA makes ahead of the loop, at every step, what needs no turn.
    # Before the first step there is nothing to sum.
    _, inputs, window = ops.while_loop(
        lambda turn, inputs, window: turn < 1,
        lambda turn, inputs, window: (
            turn + 1,
            *_open_window(inputs, window, start + turn, state, matrix_rows),
        ),
        (ops.where(ops.equal(state.step, 0), 1, place), inputs, window),
    )
    slots = ops.arange(2 * WINDOW, dtype="int32")
    x = ops.pad(x, [[0, 0], [0, 0], [0, width - channels]])
    x = _exchange(ops.cast(x, window.dtype), hypotheses, heads)
    everywhere = ops.tile(x[:, :, None], (1, 1, 2 * WINDOW, 1))
    window = _write(window, everywhere, ops.equal(slots, WINDOW + place))
    # The sums belong to who wrote the window's first position.
    positions = start + ops.maximum(slots - WINDOW, 0)
    positions = ops.minimum(positions, length - 1)
    row = matrix_rows(ops.reshape(state.step, (1,)))
    written = ops.logical_and(slots >= WINDOW, slots <= WINDOW + place)
    row = ops.where(written, ops.take(row, positions, axis=2), 0.0)
    row = row + ops.cast(ops.equal(slots, place), row.dtype)
    if ancestry is not None:
        ancestry = ops.take(ancestry, positions, axis=4)
    y = _exchange(_product(row, window, ancestry), heads, hypotheses)
    y = ops.reshape(y, (-1, heads, width))[..., :channels]
    return y, {
        "inputs": ops.reshape(inputs, (-1, length, width)),
        "window": ops.reshape(window, (-1, 2 * WINDOW, width)),
    }


def _open_window(inputs, window, start, state, matrix_rows):
    """Moves the window's inputs to the others, and makes the next window's sums."""
    keys = state.key_positions
    length, width = keys.shape[0], inputs.shape[2]
    hypotheses = inputs.shape[1] // length
    recent = ops.reshape(window, (-1, hypotheses, 2 * WINDOW, width))[:, :, WINDOW:]
    moved = ops.tile(recent, (1, 1, -(-length // WINDOW), 1))[:, :, :length]
    before = keys < start
    inputs = _write(inputs, moved, ops.logical_and(before, keys >= start - WINDOW))
    rows = matrix_rows(start + ops.arange(WINDOW, dtype="int32"))
    rows = rows * ops.cast(before, rows.dtype)
    ahead = _product(rows, inputs, state.ancestry)
    ahead = ops.reshape(ahead, (-1, hypotheses, WINDOW, width))
    window = ops.concatenate([ahead, recent], axis=2)
    return inputs, ops.reshape(window, (-1, hypotheses * 2 * WINDOW, width))


def _write(cached, x, here):
    """Puts x where `here`, bool `[places]`.

    Args:
        cached: float `[groups, hypotheses * places, width]`.
        x: float `[groups, hypotheses, places, width]`.
        here: bool `[places]`.
    """
    here = ops.tile(here, (x.shape[1],))[:, None]
    return ops.where(here, ops.reshape(x, (-1, *cached.shape[1:])), cached)


def _exchange(x, first, second):
    """`[.. * first, second, width]` to `[.. * second, first, width]`, of axes in turn.

    Args:
        x: float, as many numbers as `[n, first, second, width]`.
        first, second: ints.

    Returns:
        float `[n * second, first, width]`.
    """
    x = ops.reshape(x, (-1, first, second, x.shape[-1]))
    return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, first, x.shape[-1]))


def _product(matrix, x, ancestry):
    """`M X`, each hypothesis' own, or of those that wrote what it goes on from.

    Args:
        matrix: float32 `[heads, targets, sources]`.
        x: float `[examples * heads, hypotheses * sources, width]`.
        ancestry: None, of one hypothesis, or see `DecodeState`, with sources for its
            positions.

    Returns:
        float `[examples * heads, hypotheses * targets, width]`.
    """
    heads, targets, sources = matrix.shape
    if ancestry is None:
        matrix = ops.broadcast_to(matrix, (ops.shape(x)[0] // heads, *matrix.shape))
    else:
        # [examples, 1, hypotheses, 1, writers, sources]
        ancestry = ops.transpose(ancestry, (0, 2, 3, 1, 4))[:, :, :, None]
        matrix = matrix[:, None, :, None] * ops.cast(ancestry, matrix.dtype)
        targets, sources = targets * matrix.shape[2], sources * matrix.shape[4]
    matrix = ops.reshape(ops.cast(matrix, x.dtype), (-1, targets, sources))
    return ops.matmul(matrix, x)
