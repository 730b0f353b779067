"""Hard-coded Gaussian attention: heads look at fixed places nearby."""

import math
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from keras import ops

from remixer_tf.arguments import Numbers, PositiveFloat, Shape, checked
from remixer_tf.errors import UserError
from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.length_mixing import MadeMatrix
from remixer_tf.layers.projected_mixing import ProjectedMixing


class GaussianMixing(MadeMatrix):
    """`LengthMixing` with `M[t, s] = N(s; t + o, deviation^2)`, o of each head.

    Args:
        offsets: numbers, o of each head.
        deviation: float. Others: see `LengthMixing`.
    """

    def __init__(self, offsets: Sequence[float], deviation: float, **kwargs: Any):
        super().__init__(toeplitz=True, **kwargs)
        self.offsets = offsets
        self.deviation = deviation

    def make_matrix(self):
        n = self.max_length
        lags = np.arange(1 - n, n) - np.array(self.offsets, "float64")[:, None]
        density = np.exp(-0.5 * (lags / self.deviation) ** 2)
        density /= self.deviation * math.sqrt(2 * math.pi)
        return ops.convert_to_tensor(density.astype("float32"))


class GaussianAttention(ProjectedMixing):
    """Attention with the weights of a normal density (You et al. 2020).

    Head h of target t gives source s the weight `N(s; t + o_h, deviation^2)`, and
    nothing of that is learned ("Hard-Coded Gaussian Attention for Neural Machine
    Translation", section 3.1). Weights of hidden sources are dropped and the others
    stay as they are, as in the authors' code.

    Args:
        num_heads, d_kv, dropout_rate, use_bias: see `ProjectedMixing`.
        offsets: numbers, each for an equal share of successive heads. None: -1 and 0 if
            causal, else -1 and 1.
        deviation: float, in positions.

    Call arguments, returns and errors: see `LengthMixing`. The number of offsets
    divides that of heads, or it is a ValueError.
    """

    @checked
    def __init__(
        self,
        num_heads: int,
        d_kv: int,
        dropout_rate: float = 0.0,
        use_bias: bool = False,
        offsets: Numbers | None = None,
        deviation: PositiveFloat = 1.0,
        **kwargs: Unpack[SublayerKeywords],
    ):
        self.offsets = offsets
        self.deviation = deviation
        super().__init__(num_heads, d_kv, dropout_rate, use_bias, **kwargs)

    def make_mixing(self, **options):
        return GaussianMixing((), self.deviation, **options)

    def build(self, input_shape: Shape) -> None:
        offsets = self.offsets
        if offsets is None:
            offsets = (-1, 0) if self.causal else (-1, 1)
        if len(offsets) == 0 or self.num_heads % len(offsets):
            raise UserError(
                "Each offset is that of as many heads, so their number divides "
                f"num_heads. Received: num_heads={self.num_heads}, offsets={offsets}"
            )
        each = self.num_heads // len(offsets)
        self.mixing.offsets = [offset for offset in offsets for _ in range(each)]
        super().build(input_shape)
