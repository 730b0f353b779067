"""Synthesizer's attention weights that are parameters."""

from typing import Any, Unpack

import keras
from keras import ops

from remixer_tf.arguments import PositiveInt, checked
from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.length_mixing import LengthMixing, MadeMatrix
from remixer_tf.layers.projected_mixing import ProjectedMixing


class FactorizedMixing(MadeMatrix):
    """`LengthMixing` of `M = R_1 R_2^T`, of a small rank.

    R_1 and R_2 start normal, so that entries of M have the deviation 0.02.

    Args:
        rank: int, columns of R_1 and R_2. Others: see `LengthMixing`.
    """

    @checked
    def __init__(self, rank: PositiveInt, **kwargs: Any):
        super().__init__(**kwargs)
        self.rank = rank

    def _build_matrix(self):
        stddev = (0.02 / self.rank**0.5) ** 0.5
        self.targets, self.sources = (
            self.add_weight(
                name=name,
                shape=(self.num_mixing_heads, self.max_length, self.rank),
                axes=("mixing_heads", None, None),
                initializer=keras.initializers.RandomNormal(stddev=stddev),
                autocast=False,
            )
            for name in ("targets", "sources")
        )

    def make_matrix(self):
        return ops.einsum("htr,hsr->hts", self.targets, self.sources)

    def _row(self, target, source):
        rows = ops.take(self.targets, ops.reshape(target, (-1,)), axis=1)
        rows = ops.einsum("htr,hsr->hts", rows, self.sources)
        return rows[:, :, : source.shape[-1]]


class RandomSynthesizer(ProjectedMixing):
    """`softmax(R) X V W_o`, R learned (Tay et al. 2020, "Synthesizer", section 3.1).

    R is `[heads, max_length, max_length]`, "random" because it begins so. Factorised,
    `R = R_1 R_2^T` (Equation 7).

    Args:
        num_heads, d_kv, dropout_rate, use_bias: see `ProjectedMixing`.
        rank: int, columns of R_1 and R_2, 8 in the paper; None for all of R.

    Call arguments, returns and errors: see `LengthMixing`.
    """

    @checked
    def __init__(
        self,
        num_heads: int,
        d_kv: int,
        dropout_rate: float = 0.0,
        use_bias: bool = False,
        rank: PositiveInt | None = None,
        **kwargs: Unpack[SublayerKeywords],
    ):
        self.rank = rank
        super().__init__(num_heads, d_kv, dropout_rate, use_bias, **kwargs)

    def make_mixing(self, **options):
        options["softmax"] = True
        if self.rank is None:
            return LengthMixing(**options)
        return FactorizedMixing(self.rank, **options)
