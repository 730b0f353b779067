"""Normalisation over channels, and what ResMLP has in its place."""

from typing import Any, Unpack

import keras
from keras import ops

from remixer_tf.arguments import PositiveFloat, Shape, Tensor, checked
from remixer_tf.layers.axes import NamedAxes
from remixer_tf.layers.keywords import LayerKeywords


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


class Affine(NamedAxes, keras.layers.Layer):
    """`y = gamma * x + beta`, per channel and without statistics.

    ResMLP's Aff (Touvron et al. 2021, "ResMLP", Equation 1).

    Call arguments:
        x: float `[..., channels]`.

    Returns:
        float of the same shape.
    """

    def __init__(self, **kwargs: Unpack[LayerKeywords]):
        super().__init__(**kwargs)

    def build(self, input_shape: Shape) -> None:
        for name, start in (("gamma", "ones"), ("beta", "zeros")):
            weight = self.add_weight(
                name=name, shape=input_shape[-1:], axes=(None,), initializer=start
            )
            setattr(self, name, weight)

    def call(self, x: Tensor) -> Tensor:
        return x * ops.cast(self.gamma, x.dtype) + ops.cast(self.beta, x.dtype)
