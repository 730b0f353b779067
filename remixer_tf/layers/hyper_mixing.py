"""HyperMixer's token mixing."""

from typing import Unpack

import numpy as np
from keras import ops

from remixer_tf.arguments import PositiveInt, Shape, Tensor, checked
from remixer_tf.layers.base import (
    Context,
    Sublayer,
    dense,
    get_activation,
    require_unpacked,
    wide,
)
from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.normalization import LayerNorm


class HyperMixing(Sublayer):
    """`Y = LayerNorm(W_2 act(W_1^T X))`, an MLP over tokens that the tokens make.

    Row t of W_1 and of W_2, `[length, d_hidden]`, is an MLP of `X[t] + P[t]` with
    d_model hidden units (Mai et al. 2022, "HyperMixer", section 3). P are sinusoids. It
    takes time linear in the length. For encoders: hidden units see every token.

    Args:
        d_hidden: int, hidden units of the MLP over tokens.
        tied: bool, whether W_2 is W_1.
        activation: str, of all three MLPs, see `get_activation`.

    Call arguments and returns: see `Sublayer`. Padding tokens count as zeros.

    Raises:
        ValueError: for packed examples, or in a decoder.
    """

    lora_projections = ("wi_0", "wo_0", "wi_1", "wo_1")

    @checked
    def __init__(
        self,
        d_hidden: PositiveInt,
        tied: bool = False,
        activation: str = "gelu_exact",
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.d_hidden = d_hidden
        self.tied = tied
        if tied:
            self.lora_projections = type(self).lora_projections[:2]
        self.act = get_activation(activation)
        self.norm = LayerNorm(name="norm", dtype=wide(self.dtype_policy))

    def not_causal(self):
        return (
            "hidden units of HyperMixing see all tokens, and HyperMixer has no form "
            "that hides later ones. Take it for an encoder, and another mixer here."
        )

    def build(self, input_shape: Shape) -> None:
        d_model, hidden = input_shape[-1], (None, None, input_shape[-1])
        options = {"dtype": self.dtype_policy, "use_bias": True}
        axes = ("d_model", None)
        self.networks = []
        for i in range(1 if self.tied else 2):
            wi = dense(f"wi_{i}", hidden, d_model, axes=axes, **options)
            wo = dense(f"wo_{i}", hidden, self.d_hidden, axes=axes, **options)
            setattr(self, f"wi_{i}", wi)
            setattr(self, f"wo_{i}", wo)
            self.networks.append((wi, wo))
        self.norm.build(hidden)

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        require_unpacked(self, context, "its hidden units see all positions of a row")
        if context.padding_mask is not None:
            x = x * ops.cast(context.padding_mask, x.dtype)[:, :, None]
        located = x + ops.cast(sinusoids(*x.shape[1:]), x.dtype)
        made = [wo(self.act(wi(located))) for wi, wo in self.networks]
        # Sums over all tokens may exceed float16.
        dtype = wide(self.dtype_policy).compute_dtype
        made, x = [ops.cast(w, dtype) for w in made], ops.cast(x, dtype)
        hidden = self.act(ops.einsum("bsu,bsd->bud", made[0], x))  # act(W_1^T X)
        return self.norm(ops.matmul(made[-1], hidden))


def sinusoids(length, channels):
    """Positions of Vaswani et al. 2017, section 3.5: float32 `[length, channels]`.

    Channels 2i and 2i + 1 are the sine and cosine of `t / 10000 ** (2i / channels)`.
    """
    even = np.arange(channels) // 2 * 2
    angles = np.arange(length)[:, None] / 10000.0 ** (even / channels)
    waves = np.where(np.arange(channels) % 2, np.cos(angles), np.sin(angles))
    return waves.astype("float32")
