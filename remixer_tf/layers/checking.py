"""Rules that hold for every sublayer; what breaks one names the layer and a position.

Each check takes a built sublayer, `run(x, **fields)`, which calls it on NumPy arrays
and returns one, and x, float32 `[batch, length, d_model]`. `fields` are those of a
`Context`. Outputs that have to be equal may differ by `tolerance` times the largest.
"""

import numpy as np
from keras import ops

from remixer_tf.layers.base import DecodeState

TOLERANCE = 1e-5


def check_causal(layer, run, x, tolerance=TOLERANCE):
    """Changes later tokens, on which no output may depend.

    Positions before `layer.first_scorable` may see each other.

    Raises:
        ValueError: an output depends on a later token.
    """
    y, first = run(x), getattr(layer, "first_scorable", 0)
    others = np.random.default_rng(7).normal(size=x.shape).astype("float32")
    for t in range(first + 1, x.shape[1]):
        changed = np.concatenate([x[:, :t], others[:, t:]], axis=1)
        seen = _difference(run(changed)[:, first:t], y[:, first:t], tolerance)
        if seen is not None:
            raise ValueError(
                f"{_describe(layer)} sees later tokens: its output at position "
                f"{first + seen} changes with the tokens from position {t} on. A "
                "decoder with it is trained on the answers. An output of a causal "
                "layer depends on its own and earlier positions alone."
            )


def check_decoding(layer, x, y, context, decode_step=None, tolerance=TOLERANCE):
    """Decodes step by step, which gives what a call on the whole sequence gives.

    Args:
        layer, x, tolerance: see the module.
        y: what `run(x)` gives.
        context: the `Context` of the whole sequence.
        decode_step: the layer's own, or the same compiled.

    Raises:
        ValueError: a step gives another output, or the layer cannot decode.
    """
    length = x.shape[1]
    decode_step = decode_step or layer.decode_step
    keys = ops.arange(length, dtype="int32")
    cache = layer.init_cache(x.shape[0], length, context)
    for t in range(length):
        here = context
        if context.tokens is not None:
            here = here._replace(tokens=context.tokens[:, t : t + 1])
        if context.position_bias is not None:
            here = here._replace(position_bias=context.position_bias[:, :, t : t + 1])
        x_t = ops.convert_to_tensor(x[:, t : t + 1])
        state = DecodeState(ops.convert_to_tensor(t, "int32"), keys)
        y_t, cache = decode_step(x_t, cache, here, state)
        y_t = ops.convert_to_numpy(ops.cast(y_t, "float32"))
        if _difference(y_t, y[:, t : t + 1], tolerance, np.abs(y).max()) is not None:
            raise ValueError(
                f"{_describe(layer)} decodes otherwise than it trains: at position "
                f"{t}, decode_step gives another output than a call on the whole "
                "sequence. Keep in the cache what an output needs of earlier positions."
            )


def check_packing(layer, run, x, encoded=None, tolerance=TOLERANCE):
    """Packs two examples and padding in a row: they give what they give alone.

    Args:
        layer, run, x, tolerance: see the module.
        encoded: float32 `[batch, encoded_length, d_model]`, if the layer reads an
            encoder: two packed examples as well.

    Raises:
        ValueError: an example depends on its neighbour in the row.
    """
    batch, length = x.shape[:2]
    half, end = length // 2, length - 1  # The last position is padding.
    segment_ids = np.array([[1] * half + [2] * (end - half) + [0]] * batch, "int32")
    fields, halves = {}, [{}, {}]
    if encoded is not None:
        middle = encoded.shape[1] // 2
        ids = np.arange(encoded.shape[1])[None].repeat(batch, 0) >= middle
        fields = {"encoded": encoded, "encoded_segment_ids": ids.astype("int32") + 1}
        halves = [{"encoded": x} for x in (encoded[:, :middle], encoded[:, middle:])]
    packed = run(
        x,
        segment_ids=segment_ids,
        positions=positions_of(segment_ids),
        padding_mask=(segment_ids > 0).astype("int32"),
        **fields,
    )
    for start, stop, own in ((0, half, halves[0]), (half, end, halves[1])):
        alone = run(x[:, start:stop], **own)
        seen = _difference(packed[:, start:stop], alone, tolerance)
        if seen is not None:
            raise ValueError(
                f"{_describe(layer)} mixes packed examples: its output at position "
                f"{start + seen} of a packed row is not that of the example alone. "
                "Use context.segment_ids and context.positions, or train with packing "
                "off (train_dataset.pack = False)."
            )


def positions_of(segment_ids):
    """Positions inside each packed example, int32 `[batch, length]` as the ids."""
    positions = np.zeros_like(segment_ids)
    for row, ids in enumerate(segment_ids):
        for column in range(1, len(ids)):
            if ids[column] == ids[column - 1]:
                positions[row, column] = positions[row, column - 1] + 1
    return positions


def _difference(y, expected, tolerance, largest=None):
    """The first position where two outputs differ, or None; NaN differs from all."""
    largest = np.abs(expected).max() if largest is None else largest
    errors = np.abs(y - expected).max(axis=(0, 2))
    wrong = ~(errors <= tolerance * max(1.0, largest))
    return int(wrong.argmax()) if wrong.any() else None


def _describe(layer):
    return f"Layer '{layer.path}' ({type(layer).__name__})"
