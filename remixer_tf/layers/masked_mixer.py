"""The masked mixer's heads."""

from typing import Unpack

from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.length_mixing import LengthMixing
from remixer_tf.layers.projected_mixing import ProjectedMixing


class MaskedMixer(ProjectedMixing):
    """`Y = (M_1 X_1 + b_1 | ... | M_h X_h + b_h) W_o + c`, with `X_h = X V_h + a_h`.

    The multi-headed masked mixer (Badger 2024, "Masked Mixers for Language Generation
    and Retrieval", arXiv 2409.01482): a convolution over positions in attention's
    place, in a decoder with M lower triangular. The flat one, which has no heads, is
    `LengthMixing(use_bias=True)`; the expanded one, with a gelu between two matrices,
    is `BlockTokenMLP` with a window of `max_length`.

    Args, call arguments, returns and errors: see `ProjectedMixing`.
    """

    def __init__(
        self,
        num_heads: int,
        d_kv: int,
        dropout_rate: float = 0.0,
        use_bias: bool = True,
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(num_heads, d_kv, dropout_rate, use_bias, **kwargs)

    def make_mixing(self, **options):
        return LengthMixing(use_bias=True, **options)
