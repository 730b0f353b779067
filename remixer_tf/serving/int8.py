"""Weights in 8 bits: `w = s q`, with integers q and a scale s for each channel."""

from typing import Any, NamedTuple

import keras
import numpy as np

from remixer_tf.errors import UserError
from remixer_tf.layers import MoE

LARGEST = 127  # -128 is left out, so that the integers are symmetric


class EightBits(NamedTuple):
    """A weight as integers and scales: `w = scale * integers`, up to half a scale.

    Attributes:
        integers: int8, of the weight's shape.
        scale: float32, of that shape, but 1 in the axis that shares a scale.
    """

    integers: Any
    scale: Any


def quantize(weight, axis):
    """Rounds a weight to the nearest integers, from -127 to 127.

    s = max |w| / 127 over the axis, and q = round(w / s), so |w - s q| <= s / 2.

    Args:
        weight: float array.
        axis: int, the axis whose numbers share a scale.

    Returns:
        an `EightBits`.

    Examples:
        >>> quantize(np.array([[1.27, 0.3], [-0.4, 0.0]]), axis=0).integers
        array([[127, 127], [-40,   0]], dtype=int8)
    """
    weight = np.asarray(weight, "float32")
    scale = np.max(np.abs(weight), axis, keepdims=True) / LARGEST
    scale = np.where(scale > 0, scale, 1.0).astype("float32")
    integers = np.clip(np.rint(weight / scale), -LARGEST, LARGEST)
    return EightBits(integers.astype("int8"), scale)


def check_finite(model):
    """Raises a ValueError if a weight of a model has NaN or infinity.

    Integers have neither, so that rounding would hide them. Norms and biases count too:
    LiteRT's converter multiplies a norm's scale into the kernel that follows.
    """
    for weight in model.weights:
        is_float = "float" in keras.backend.standardize_dtype(weight.dtype)
        if is_float and not np.isfinite(keras.ops.convert_to_numpy(weight)).all():
            raise UserError(
                f"int8 cannot hold {weight.path}: it has values that are not finite. "
                "Export an earlier checkpoint (--step)."
            )


def shared_axes(model):
    """Which weights of a model are stored in 8 bits.

    Those are the kernels of dense layers and experts, with a scale for each output, and
    embeddings of tokens, with a scale for each token. Norms, biases, matrices over
    positions and routers stay float32: they are small, or errors in them grow.

    Args:
        model: a built `keras.Model`.

    Returns:
        dictionary from a weight's path to the axis that shares a scale.
    """
    axes = {}
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dense):
            axes[layer._kernel.path] = -2
        elif isinstance(layer, keras.layers.Embedding):
            axes[layer._embeddings.path] = -1
        elif isinstance(layer, MoE):
            axes |= {weight.path: -2 for weight in (*layer.wi, layer.wo)}
    return axes


def matrix_shapes(model):
    """Returns the shapes of the matrices of `shared_axes`, also transposed, as a set.

    A converted file has no names for its constants, and some are no weights: LiteRT's
    converter multiplies a norm's scale into the kernel that follows. So what a product
    or a look-up reads is known by its shape. Experts have three axes, and are left out.
    """
    axes = shared_axes(model)
    shapes = {tuple(w.shape) for w in model.weights if w.path in axes}
    shapes = {shape for shape in shapes if len(shape) == 2}
    return shapes | {shape[::-1] for shape in shapes}
