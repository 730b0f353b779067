"""Learned absolute positions."""

from typing import Unpack

import keras
from keras import ops

from remixer_tf.arguments import PositiveInt, Shape, Tensor, checked
from remixer_tf.layers.axes import NamedAxes
from remixer_tf.layers.base import (
    Context,
    DecodeState,
    by_row,
    check_length,
    require_max_length,
    require_positions,
)
from remixer_tf.layers.keywords import LayerKeywords
from remixer_tf.layers.saving import SavesParts


class PositionEmbedding(SavesParts, NamedAxes, keras.layers.Layer):
    """Adds a learned vector per position: `y[t] = x[t] + P[t]` (BERT, section 3).

    Args:
        max_length: int, the longest sequence. None: as the stack says.

    Call arguments:
        x: float `[batch, length, d_model]`.
        context: a `Context`. Packed examples count from 0 each, by `positions`.
        state: None, or while decoding the `DecodeState`: the position is its `step`.

    Returns:
        float `[batch, length, d_model]`.

    Raises:
        ValueError: for a sequence, or a decoding cache, longer than `max_length`, or
            packed examples without positions.
    """

    told_by_stack = ("max_length",)
    rows_apart = True  # see `Sublayer`

    @checked
    def __init__(
        self, max_length: PositiveInt | None = None, **kwargs: Unpack[LayerKeywords]
    ):
        super().__init__(**kwargs)
        self.max_length = max_length

    def build(self, input_shape: Shape) -> None:
        require_max_length(self)
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_length, input_shape[-1]),  # [max_length, d_model]
            axes=(None, "d_model"),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        )

    def call(
        self, x: Tensor, context: Context, state: DecodeState | None = None
    ) -> Tensor:
        length = x.shape[1] if state is None else state.key_positions.shape[0]
        check_length(self, length)
        if state is not None:
            return x + ops.take(self.embeddings, by_row(state.step), axis=0)
        if context.segment_ids is None:
            return x + self.embeddings[:length]
        require_positions(context)
        return x + ops.take(self.embeddings, context.positions, axis=0)
