"""TNN's network from a distance to a weight for each channel."""

from typing import Any

import keras
from keras import ops

from remixer_tf.arguments import Shape, Tensor
from remixer_tf.layers.base import dense
from remixer_tf.layers.normalization import LayerNorm


class PositionNetwork(keras.layers.Layer):
    """`w(d) = decay ** |d| f(d)` for distances d in tokens (TNN, section 3.3).

    f is a linear layer of one input, `layers` times norm, relu and linear, and a last
    such unit with an output a channel. Float32 whatever the compute dtype.

    Args:
        channels: int, outputs.
        width: int, of the hidden layers.
        layers: int.
        decay: float in (0, 1]; 1 for none.

    Call arguments:
        distances: `[n]`.

    Returns:
        float32 `[n, channels]`.
    """

    def __init__(
        self, channels: int, width: int, layers: int, decay: float, **kwargs: Any
    ):
        super().__init__(dtype="float32", **kwargs)
        self.channels = channels
        self.width = width
        self.layers = layers
        self.decay = decay

    def build(self, input_shape: Shape) -> None:
        self.first = self._linear("first", 1, self.width, None)
        self.units = []
        for i in range(self.layers + 1):
            last = i == self.layers
            norm = LayerNorm(name=f"norm_{i}", dtype="float32")
            norm.build((None, self.width))
            units = self.channels if last else self.width
            axis = "d_ff" if last else None
            linear = self._linear(f"linear_{i}", self.width, units, axis)
            self.units.append((norm, linear))

    @staticmethod
    def _linear(name, d_in, d_out, axis):
        # As in the authors' code. A bias of 0 makes f the same for all d > 0, since a
        # norm follows.
        limit = d_in**-0.5
        start = keras.initializers.RandomUniform(-limit, limit)
        bias = {"use_bias": True, "bias_initializer": start.clone()}
        return dense(name, (None, d_in), d_out, "float32", start, (None, axis), **bias)

    def call(self, distances: Tensor) -> Tensor:
        distances = ops.cast(distances, "float32")
        x = self.first(distances[:, None])
        for norm, linear in self.units:
            x = linear(ops.relu(norm(x)))
        return x * ops.power(self.decay, ops.abs(distances))[:, None]
