"""From an image to a sequence of tokens."""

from typing import Unpack

import keras
from keras import ops

from remixer_tf.arguments import PositiveInt, Shape, Tensor, checked
from remixer_tf.errors import UserError
from remixer_tf.layers.base import dense
from remixer_tf.layers.keywords import LayerKeywords


class PatchEmbedding(keras.layers.Layer):
    """One token per patch: `X[i] = vec(patch_i) W + b` (gMLP, section 3).

    The patches do not overlap and are read row by row; vec runs over a patch's rows,
    columns and channels. It is a convolution whose stride is its size, written as the
    matrix product that it is.

    Args:
        patch_size: int, side of a patch in pixels.
        d_model: int.

    Call arguments:
        images: float `[batch, height, width, channels]`.

    Returns:
        float `[batch, height / patch_size * width / patch_size, d_model]`.

    Raises:
        ValueError: for sides that the patch size does not divide.
    """

    @checked
    def __init__(
        self,
        patch_size: PositiveInt,
        d_model: PositiveInt,
        **kwargs: Unpack[LayerKeywords],
    ):
        super().__init__(**kwargs)
        self.patch_size = patch_size
        self.d_model = d_model

    def build(self, input_shape: Shape) -> None:
        _, height, width, channels = input_shape
        if height % self.patch_size or width % self.patch_size:
            raise UserError(
                "Patches tile the image, so their size divides its sides. Received: "
                f"patch_size={self.patch_size} for images of {height}x{width} pixels"
            )
        inputs = self.patch_size**2 * channels
        self.projection = dense(  # [patch_size * patch_size * channels, d_model]
            "projection",
            (None, None, inputs),
            self.d_model,
            self.dtype_policy,
            axes=(None, "d_model"),
            use_bias=True,
        )

    def call(self, images: Tensor) -> Tensor:
        _, height, width, channels = images.shape
        size = self.patch_size
        rows, columns = height // size, width // size
        x = ops.reshape(images, (-1, rows, size, columns, size, channels))
        x = ops.transpose(x, (0, 1, 3, 2, 4, 5))
        return self.projection(
            ops.reshape(x, (-1, rows * columns, size * size * channels))
        )
