"""Weights in 8 bits: `w = s q`, with integers q and a scale s for each channel."""

import functools
from typing import Any, NamedTuple

import keras
import numpy as np

from remixer_tf.errors import UserError
from remixer_tf.layers import Sublayer

LARGEST = 127  # -128 is left out, so that the integers are symmetric
SMALLEST = 1024  # numbers; smaller constants do not repay their operators


class EightBits(NamedTuple):
    """A weight as integers and scales: `w = scale * integers`, up to half a scale.

    Attributes:
        integers: int8, of the weight's shape.
        scale: float32, of that shape, but 1 in the axis that shares a scale.
    """

    integers: Any
    scale: Any


def quantize(weight, axis):
    """Rounds a float array to the nearest integers, from -127 to 127: an `EightBits`.

    Numbers along `axis` share a scale, s = max |w| / 127. With q = round(w / s) no
    weight changes by more than s / 2.

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

    Integers have neither, so that rounding would hide them, and answers that are not
    finite cannot be compared. Norms and biases count too: LiteRT's converter multiplies
    a norm's scale into the kernel that follows.
    """
    for weight in model.weights:
        is_float = "float" in keras.backend.standardize_dtype(weight.dtype)
        if is_float and not np.isfinite(keras.ops.convert_to_numpy(weight)).all():
            raise UserError(
                f"The weight {weight.path} has values that are not finite. Export an "
                "earlier checkpoint (--step)."
            )


def shared_axes(model):
    """Which weights of a built `keras.Model` are stored in 8 bits.

    Those are the kernels of Keras' dense layers, with a scale for each output, and
    embeddings, with a scale for each token. So are weights that a layer names in
    `int8_axes`, such as experts and mixing matrices, see `Sublayer`, or makes with an
    `int8_axis`, see `NamedAxes.add_weight`. Norms, biases and routers stay float32:
    they are small, or errors in them grow. Returns a dictionary from a weight's path to
    the axis that shares a scale.
    """
    axes = {}
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.Dense):
            axes[layer._kernel.path] = -2
        elif isinstance(layer, keras.layers.Embedding):
            axes[layer._embeddings.path] = -1
        elif isinstance(layer, Sublayer):
            for name, axis in layer.int8_axes().items():
                weights = keras.tree.flatten(getattr(layer, name, None))
                axes |= {w.path: axis for w in weights if w is not None}
    own = {weight.path: getattr(weight, "int8_axis", None) for weight in model.weights}
    return axes | {path: axis for path, axis in own.items() if axis is not None}


class Matrices:
    """The constants that a converted file stores as integers.

    A converted file has no names for its constants, so they are known by their values.

    - `array in matrices`: a kernel or an embedding, also transposed. Each row or column
      may have a factor: LiteRT's converter multiplies a norm's scale into the kernel
      that follows.
    - `matrices.rows(array)`: a constant that becomes float32 when the file is loaded.
    - `array in matrices.with_wide_factor`: a kernel whose other factor has so wide a
      range that 8 bits cost more there than elsewhere.

    Args:
        weights: list of float32 arrays `[m, n]`.
        stacks: list of functions from a size to a float32 array of that many numbers,
            or to None. Each row `[n]` of an array `[.., n]` has a scale.
        with_wide_factor: list of those of `weights`.

    Examples:
        >>> weight = np.array([[1, 2], [3, 4]], "float32")
        >>> matrices = Matrices([weight])
        >>> weight.T in matrices, weight * [2, 3] in matrices, weight + 1 in matrices
        (True, True, False)
    """

    def __init__(self, weights, stacks=(), with_wide_factor=()):
        self._by_shape = {}
        for weight in weights:
            for matrix in (weight, weight.T):
                self._by_shape.setdefault(matrix.shape, []).append(matrix)
        self._stacks = stacks
        self.with_wide_factor = with_wide_factor and Matrices(with_wide_factor)

    def __contains__(self, array):
        # A line of one number is a multiple of any other.
        found = self._by_shape.get(array.shape, ())
        if not found or min(array.shape) == 1 or not np.isfinite(array).all():
            return False
        return any(
            _is_multiple(array, matrix) or _is_multiple(array.T, matrix.T)
            for matrix in found
        )

    def rows(self, array):
        """Quantizes a constant if it is a stack, or if integers hold it exactly.

        A stack may have any shape that keeps the order of its numbers. Integers hold
        masks and empty caches exactly. Returns an `EightBits` `[rows, n]` of a float32
        array of any shape, or None: the constant stays float32.
        """
        if array.size < SMALLEST or not np.isfinite(array).all():
            return None
        for stack in self._stacks:
            values = stack(array.size)
            if values is not None and _is_close(array.ravel(), values.ravel()):
                return quantize(array.reshape(-1, values.shape[-1]), axis=1)
        rows = array.reshape(-1, array.shape[-1])
        eight = quantize(rows, axis=1)
        is_smaller = 4 * eight.scale.size < array.size
        is_exact = np.allclose(eight.integers * eight.scale, rows, rtol=1e-6, atol=0)
        return eight if is_smaller and is_exact else None


def _is_close(array, other):
    return np.abs(array - other).max() <= 1e-5 * np.abs(array).max()


def _is_multiple(array, matrix):
    """Whether each row of an array is a multiple of the matrix's row."""
    for rows in (slice(1), slice(None)):  # The first row rules out most.
        received, row = array[rows], matrix[rows]
        squares = (row**2).sum(axis=1, keepdims=True)
        factor = (received * row).sum(axis=1, keepdims=True)
        factor = factor / np.where(squares > 0, squares, 1)
        if not _is_close(received, factor * row):
            return False
    return True


def matrices(model):
    """Returns the `Matrices` of a model: the weights of `shared_axes`.

    Experts and mixing matrices are stacks, and so are kernels and embeddings that a
    file reads in other ways. A file has a weight such as H, its layer's
    `folded_constant`, softmax(H), or both. In a decoder, kernels of `wide_inputs` count
    as any other: the steps of a search would take a fifth longer.
    """
    axes = shared_axes(model)
    weights = [w for w in model.weights if w.path in axes]
    arrays = [keras.ops.convert_to_numpy(w) for w in weights]
    flat = [array for array in arrays if array.ndim == 2]
    stacks = [_of_size(x) for x in (*arrays, *(array.T for array in flat))]
    sublayers = [x for x in model._flatten_layers() if isinstance(x, Sublayer)]
    stacks += [_constant(layer) for layer in sublayers]
    wide = [
        keras.ops.convert_to_numpy(getattr(layer, name)._kernel)
        for layer in sublayers
        if not layer.causal
        for name in layer.wide_inputs
    ]
    return Matrices(flat, stacks, wide)


def _of_size(array):
    return lambda size: array if array.size == size else None


def _constant(layer):
    @functools.cache
    def stack(size):
        constant = layer.folded_constant(size)
        return None if constant is None else keras.ops.convert_to_numpy(constant)

    return stack
