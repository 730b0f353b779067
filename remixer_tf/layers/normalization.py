"""Normalisation over channels."""

import keras
from keras import ops

from remixer_tf.layers.axes import NamedAxes


class RMSNorm(NamedAxes, keras.layers.Layer):
    """Root-mean-square normalisation: `y = x / sqrt(mean(x^2) + eps) * scale`.

    T5's layer norm: no mean is subtracted, there is no bias (Zhang and Sennrich 2019,
    Equation 4). Statistics are computed in float32 whatever the compute dtype.

    Args:
        epsilon: float, added to the mean square.

    Call arguments:
        x: float `[..., channels]`.

    Returns:
        the same shape, in the compute dtype.
    """

    def __init__(self, epsilon=1e-6, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape):
        self.scale = self.add_weight(
            name="scale",
            shape=(input_shape[-1],),  # [channels]
            axes=(None,),
            initializer="ones",
            autocast=False,
        )

    def call(self, x):
        x = ops.cast(x, "float32")
        mean_square = ops.mean(ops.square(x), axis=-1, keepdims=True)
        x = x * ops.rsqrt(mean_square + self.epsilon) * self.scale
        return ops.cast(x, self.compute_dtype)


class LayerNorm(NamedAxes, keras.layers.LayerNormalization):
    """Keras' layer normalization with an epsilon of 1e-6.

    `y = (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta` over the channels, with
    statistics in float32 whatever the compute dtype.

    Args:
        epsilon: float, added to the variance.
        **kwargs: see `keras.layers.LayerNormalization`.
    """

    def __init__(self, epsilon=1e-6, **kwargs):
        super().__init__(epsilon=epsilon, **kwargs)

    def add_weight(self, **kwargs):
        return super().add_weight(axes=(None,), **kwargs)  # [channels]
