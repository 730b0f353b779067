"""A Transformer-shaped stack: a list of residual sublayers, repeated."""

import keras
from keras import ops

from remixer_tf.layers.dropout import Dropout
from remixer_tf.layers.normalization import RMSNorm


class Block(keras.layers.Layer):
    """`x + dropout(sublayer(norm(x)))`, the pre-norm residual around every sublayer.

    Args:
        sublayer: a `Sublayer`.
        norm: a normalisation layer.
        dropout_rate: float, one mask for all positions.

    Call arguments and returns: see `Sublayer`.

    Raises:
        ValueError: if the sublayer returns another shape than it received.
    """

    def __init__(self, sublayer, norm, dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.sublayer = sublayer
        self.norm = norm
        self.dropout = Dropout(
            dropout_rate, shared_axes=(1,), name="dropout", dtype=self.dtype_policy
        )

    def build(self, input_shape):
        self.norm.build(input_shape)
        self.sublayer.build(input_shape)
        self.dropout.build()

    def call(self, x, context, training=False):
        y = self.sublayer(self.norm(x), context=context, training=training)
        return self._add(x, y, training)

    def init_cache(self, batch_size, max_length, context):
        return self.sublayer.init_cache(batch_size, max_length, context)

    def decode_step(self, x, cache, context):
        y, cache = self.sublayer.decode_step(self.norm(x), cache, context)
        return self._add(x, y), cache

    def _add(self, x, y, training=False):
        if tuple(x.shape) != tuple(y.shape):
            raise ValueError(
                "A sublayer returns the shape it received. Received from "
                f"'{self.sublayer.path}': {tuple(y.shape)} for {tuple(x.shape)}"
            )
        return x + self.dropout(y, training=training)


class TransformerStack(keras.layers.Layer):
    """`num_layers` repetitions of a list of residual sublayers, then a norm.

    Every architecture is an edit of the list: T5.1.1's encoder is
    `{"self_attention": ..., "feed_forward": ...}`, Remixer's puts `"remixer"` in the
    feed-forward's place.

    Args:
        sublayers: a dictionary from a sublayer's name to a factory that takes `name`
            and `dtype` and returns a new `Sublayer`; in their order in the layer.
        num_layers: int.
        position_bias: a factory that takes `name` and returns the
            `RelativePositionBias` shared by all layers, or None.
        norm: a factory that takes `name` and `dtype` and returns a normalisation
            layer.
        dropout_rate: float, on the input, each sublayer's output, and the output.

    Call arguments:
        x: float `[batch, length, d_model]`, or `[batch, 1, d_model]` while decoding.
        context: a `Context`.
        cache: None, or while decoding what `init_cache` or the last call returned.
        training: bool.

    Returns:
        the output, of the shape of x, and the new cache (empty unless decoding).
    """

    def __init__(
        self,
        sublayers,
        num_layers,
        position_bias=None,
        norm=RMSNorm,
        dropout_rate=0.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.num_layers = num_layers
        self.blocks = [
            Block(
                sublayer(name=key, dtype=dtype),
                norm(name="norm", dtype=dtype),
                dropout_rate,
                name=f"layer_{layer}_{key}",
                dtype=dtype,
            )
            for layer in range(num_layers)
            for key, sublayer in sublayers.items()
        ]
        self.position_bias = position_bias and position_bias(name="position_bias")
        self.final_norm = norm(name="final_norm", dtype=dtype)
        self.input_dropout, self.output_dropout = (
            Dropout(dropout_rate, shared_axes=(1,), name=name, dtype=dtype)
            for name in ("input_dropout", "output_dropout")
        )

    def build(self, input_shape):
        if self.position_bias is not None:
            self.position_bias.build()
        self.input_dropout.build()
        for block in self.blocks:
            block.build(input_shape)
        self.final_norm.build(input_shape)
        self.output_dropout.build()

    def call(self, x, context, cache=None, training=False):
        x = self.input_dropout(x, training=training)
        if self.position_bias is not None:
            if cache is None:
                keys = queries = ops.arange(x.shape[1], dtype="int32")
            else:
                keys, queries = context.key_positions, ops.reshape(context.step, (1,))
            bias = self.position_bias(queries, keys)
            context = context._replace(position_bias=bias)
        new_cache = {}
        for block in self.blocks:
            if cache is None:
                x = block(x, context=context, training=training)
            else:
                x, new_cache[block.name] = block.decode_step(
                    x, cache[block.name], context
                )
        x = self.output_dropout(self.final_norm(x), training=training)
        return x, new_cache

    def init_cache(self, batch_size, max_length, context):
        """Empty caches of all blocks, by the blocks' names (see `Sublayer`)."""
        return {
            block.name: block.init_cache(batch_size, max_length, context)
            for block in self.blocks
        }

    def grow_cache(self, cache, max_length, context):
        """A cache of `init_cache` or a step, padded to hold `max_length` tokens."""
        values = keras.tree.flatten(cache)
        batch_size = ops.shape(values[0])[0] if values else 1
        empty = self.init_cache(batch_size, max_length, context)

        def pad(value, like):
            missing = [
                n - m for n, m in zip(like.shape[1:], value.shape[1:], strict=True)
            ]
            return ops.pad(value, [[0, 0], *[[0, n] for n in missing]])

        return keras.tree.map_structure(pad, cache, empty)
