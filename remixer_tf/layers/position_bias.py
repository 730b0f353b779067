"""T5's relative position bias."""

import math
from typing import Unpack

import keras
from keras import ops

from remixer_tf.arguments import PositiveInt, Shape, Tensor, checked
from remixer_tf.errors import UserError, check_integers
from remixer_tf.layers.axes import NamedAxes
from remixer_tf.layers.keywords import LayerKeywords
from remixer_tf.layers.saving import SavesParts
from remixer_tf.layers.toeplitz import create_toeplitz_matrix


def relative_position_bucket(
    relative_position, bidirectional, num_buckets, max_distance
):
    """The buckets, in [0, num_buckets), of int32 `key position - query position`.

    The result has the same shape (T5, section 2.1).

    Half of the buckets hold one distance each, the other half grow logarithmically up
    to `max_distance`, and all beyond share the last. Bidirectional: half of all buckets
    for keys behind the query, half for keys ahead. Otherwise keys ahead share bucket 0
    with distance 0 (a causal mask hides them).
    """
    bucket = ops.zeros_like(relative_position)
    distance = -relative_position
    if bidirectional:
        num_buckets //= 2
        bucket += ops.cast(distance < 0, "int32") * num_buckets
        distance = ops.abs(distance)
    else:
        distance = ops.maximum(distance, 0)
    max_exact = num_buckets // 2
    # maximum(., 1) keeps the unused branch of the select finite.
    log_ratio = ops.log(ops.cast(ops.maximum(distance, 1), "float32") / max_exact)
    log_ratio /= math.log(max_distance / max_exact)
    large = max_exact + ops.cast(log_ratio * (num_buckets - max_exact), "int32")
    large = ops.minimum(large, num_buckets - 1)
    return bucket + ops.where(distance < max_exact, distance, large)


class RelativePositionBias(SavesParts, NamedAxes, keras.layers.Layer):
    """A learned bias per head and bucket of distance, added to attention logits.

    One instance serves all layers of a stack (T5: `bias_shared`).

    Args:
        num_heads: int.
        bidirectional: bool, whether keys ahead of a query have buckets too. None: in an
            encoder yes, in a causal stack no; without a stack, yes.
        num_buckets: int.
        max_distance: int, more than the distances that have a bucket of their own: a
            quarter of the buckets if bidirectional, half of them otherwise.

    Raises:
        ValueError: for numbers outside their ranges.
    """

    told_by_stack = ("bidirectional",)

    @checked
    def __init__(
        self,
        num_heads: PositiveInt,
        bidirectional: bool | None = None,
        num_buckets: int = 32,
        max_distance: PositiveInt = 128,
        **kwargs: Unpack[LayerKeywords],
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.bidirectional = bidirectional
        self.num_buckets = num_buckets
        self.max_distance = max_distance

    def build(self, input_shape: Shape | None = None) -> None:
        if self.bidirectional is None:
            self.bidirectional = True
        parts = 4 if self.bidirectional else 2
        check_integers(parts, num_buckets=self.num_buckets)
        exact = self.num_buckets // parts
        if self.max_distance <= exact:
            raise UserError(
                f"max_distance must be more than {exact}: so many distances have one "
                "of the buckets each, and the others grow up to max_distance. "
                f"Received: max_distance={self.max_distance}, "
                f"num_buckets={self.num_buckets}, bidirectional={self.bidirectional}"
            )
        self.rel_embedding = self.add_weight(
            name="rel_embedding",
            shape=(self.num_heads, self.num_buckets),  # [heads, buckets]
            axes=("heads", None),
            initializer="glorot_uniform",
            autocast=False,
        )

    def call(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Biases of queries on keys at int32 positions `[length]` and `[kv_length]`.

        Returns float32 `[1, heads, length, kv_length]`.
        """
        return self._lookup(key_positions[None, :] - query_positions[:, None])[None]

    def whole(self, length: int) -> Tensor:
        """Biases of all positions on all, float32 `[1, heads, length, length]`.

        They depend on the distance alone: 2n-1 look-ups, laid out as a Toeplitz matrix,
        where n^2 look-ups would have a slow gradient.
        """
        distances = ops.arange(-(length - 1), length, dtype="int32")
        return create_toeplitz_matrix(self._lookup(distances))[None]

    def _lookup(self, relative_position):
        buckets = relative_position_bucket(
            relative_position, self.bidirectional, self.num_buckets, self.max_distance
        )
        return ops.take(self.rel_embedding, buckets, axis=1)


def bias_of_step(position_bias, state):
    """Biases of a `DecodeState`'s step, float32 `[1 or batch, heads, 1, length]`."""
    bias = position_bias(ops.reshape(state.step, (-1,)), state.key_positions)
    # Rows at positions of their own are so many queries of one row.
    return ops.transpose(bias, (2, 1, 0, 3)) if len(state.step.shape) else bias
