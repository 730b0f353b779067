"""What static mixing remembers while decoding, and the sums it makes ahead of time."""

from keras import ops

from remixer_tf.layers.base import join_examples, split_examples

# The cache holds blocks of so many channels, the last padded with zeros. The product of
# a row with a matrix of 64 x 768 takes XLA six times as long on a CPU as with six of
# 64 x 128.
CACHE_CHANNELS = 128

# A static matrix is known before its inputs. Of so many steps at once, the first makes
# the sums of all that came before; each then reads these and the inputs since, and not
# the whole cache.
WINDOW = 8


def cache_blocks(channels):
    """How many blocks a head's cache has, and how many channels each."""
    return -(-channels // CACHE_CHANNELS), min(channels, CACHE_CHANNELS)


def make_mixing_cache(rows, heads, channels, length, dtype):
    """An empty cache.

    Args:
        rows: int or int32 scalar, rows that are decoded.
        heads, channels: ints, matrices, and channels of each.
        length: int, the number of positions that will be decoded.
        dtype: str.

    Returns:
        a dictionary: `inputs`, `[rows, heads * blocks, length, channels of a block]`,
        those before the window; and `window`, with `2 WINDOW` for `length`, first the
        sums over `inputs` for each step of the window, then the inputs of the window.
    """
    blocks, width = cache_blocks(channels)
    shape = (rows, heads * blocks)
    return {
        "inputs": ops.zeros((*shape, length, width), dtype),
        "window": ops.zeros((*shape, 2 * WINDOW, width), dtype),
    }


def mix_step(x, cache, context, matrix_rows):
    """Mixes position `context.step` with those before it.

    Args:
        x: float `[rows, heads, channels]`.
        cache: see `make_mixing_cache`.
        context: a `Context` with `step` and `key_positions`.
        matrix_rows: a function of int32 positions `[n]` that gives their rows of M,
            causal: float32 `[heads, n, length]`. Of positions beyond the last any.

    Returns:
        float, the shape of x, and the new cache.
    """
    _, heads, channels = x.shape
    blocks, width = cache_blocks(channels)
    x = ops.pad(x, [[0, 0], [0, 0], [0, blocks * width - channels]])
    x = ops.reshape(x, (-1, heads * blocks, 1, width))
    inputs, window = cache["inputs"], cache["window"]
    place = context.step % WINDOW
    start = context.step - place
    # A loop of at most one turn, and not a condition, which ONNX's converter breaks. In
    # there `turn` is 0: XLA makes ahead of the loop, at every step, what needs no turn.
    _, inputs, window = ops.while_loop(
        lambda turn, inputs, window: turn < 1,
        lambda turn, inputs, window: (
            turn + 1,
            *_open_window(inputs, window, start + turn, context, matrix_rows),
        ),
        (place, inputs, window),
    )
    slots = ops.arange(2 * WINDOW, dtype="int32")
    window = ops.where(
        ops.equal(slots, WINDOW + place)[:, None], ops.cast(x, window.dtype), window
    )
    # The sums belong to who wrote the window's first position.
    positions = start + ops.maximum(slots - WINDOW, 0)
    positions = ops.minimum(positions, inputs.shape[2] - 1)
    row = matrix_rows(ops.reshape(context.step, (1,)))
    written = ops.logical_and(slots >= WINDOW, slots <= WINDOW + place)
    row = ops.where(written, ops.take(row, positions, axis=2), 0.0)
    row = row + ops.cast(ops.equal(slots, place), row.dtype)
    ancestry = context.ancestry
    if ancestry is not None:
        ancestry = ops.take(ancestry, positions, axis=4)
    y = _product(row, window, ancestry)
    y = ops.reshape(y, (-1, heads, blocks * width))[..., :channels]
    return y, {"inputs": inputs, "window": window}


def _open_window(inputs, window, start, context, matrix_rows):
    """Moves the window's inputs to the others, and makes the next window's sums."""
    length = inputs.shape[2]
    keys = context.key_positions
    recent = window[:, :, WINDOW:]
    moved = ops.tile(recent, (1, 1, -(-length // WINDOW), 1))[:, :, :length]
    before = keys < start
    here = ops.logical_and(before, keys >= start - WINDOW)
    inputs = ops.where(here[:, None], moved, inputs)
    rows = matrix_rows(start + ops.arange(WINDOW, dtype="int32"))
    rows = rows * ops.cast(before, rows.dtype)
    ahead = _product(rows, inputs, context.ancestry)
    return inputs, ops.concatenate([ahead, recent], axis=2)


def _product(matrix, x, ancestry):
    """`M X`, each row's own, or that of the rows that wrote what it goes on from.

    Args:
        matrix: float32 `[heads, targets, sources]`.
        x: float `[rows, heads * blocks, sources, width]`.
        ancestry: None, or see `Context`, with sources for its positions.

    Returns:
        float `[rows, heads * blocks, targets, width]`.
    """
    groups, _, width = x.shape[1:]
    heads, targets, sources = matrix.shape
    matrix = ops.repeat(matrix, groups // heads, axis=0)
    if ancestry is None:
        matrix = ops.broadcast_to(matrix, (ops.shape(x)[0], *matrix.shape))
        return ops.matmul(ops.cast(matrix, x.dtype), x)
    hypotheses = ancestry.shape[1]
    ancestry = ops.cast(ancestry, matrix.dtype)
    matrix = ancestry[:, :, :, :, None] * matrix[:, None]
    matrix = join_examples(ops.cast(matrix, x.dtype))
    matrix = ops.reshape(matrix, (-1, groups, hypotheses * targets, sources))
    y = ops.sum(split_examples(ops.matmul(matrix, x), hypotheses), axis=1)
    y = ops.reshape(y, (-1, groups, hypotheses, targets, width))
    y = ops.transpose(y, (0, 2, 1, 3, 4))
    return ops.reshape(y, (-1, groups, targets, width))
