"""The index of the largest value."""

from keras import ops


def largest(x):
    """`argmax` over the last axis; of equal values the first counts.

    `keras.ops.argmax`, the reference, gives every -0.0 another value first, by the bits
    of the floats.

    Chosen for: all devices, since LiteRT and ONNX lack operations on bits.
    Gain: LARGEST_GAIN

    Args:
        x: float `[..., n]`.

    Returns:
        int32 `[...]`.
    """
    return ops.cast(ops.top_k(x, 1)[1][..., 0], "int32")
