"""Normalisation over channels."""

from typing import Any

import keras

from remixer_tf.arguments import PositiveFloat, checked
from remixer_tf.layers.axes import NamedAxes


class RMSNorm(NamedAxes, keras.layers.RMSNormalization):
    """Root-mean-square normalisation: `y = x / sqrt(mean(x^2) + eps) * scale`.

    T5's layer norm: no mean is subtracted, there is no bias (Zhang and Sennrich 2019,
    Equation 4). Statistics and scale are float32 whatever the compute dtype.

    Args:
        epsilon: float, added to the mean square.
        **kwargs: see `keras.layers.RMSNormalization`.
    """

    @checked
    def __init__(self, epsilon: PositiveFloat = 1e-6, **kwargs: Any):
        super().__init__(epsilon=epsilon, **kwargs)

    def add_weight(self, **kwargs):  # [channels]
        return super().add_weight(axes=(None,), autocast=False, **kwargs)


class LayerNorm(NamedAxes, keras.layers.LayerNormalization):
    """Keras' layer normalization with an epsilon of 1e-6.

    `y = (x - mean(x)) / sqrt(var(x) + eps) * gamma + beta` over the channels, with
    statistics in float32 whatever the compute dtype.

    Args:
        epsilon: float, added to the variance.
        **kwargs: see `keras.layers.LayerNormalization`.
    """

    @checked
    def __init__(self, epsilon: PositiveFloat = 1e-6, **kwargs: Any):
        super().__init__(epsilon=epsilon, **kwargs)

    def add_weight(self, **kwargs):
        return super().add_weight(axes=(None,), **kwargs)  # [channels]
