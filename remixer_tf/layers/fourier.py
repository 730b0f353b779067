"""FNet's mixing by Fourier transforms."""

import math
from typing import Annotated, Unpack

import numpy as np
from keras import ops

from remixer_tf.arguments import Tensor, checked, one_of
from remixer_tf.layers.base import Context, Sublayer, require_unpacked, wide
from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.sowing import MixingFacts, sow

METHODS = ("fft", "matmul")


class FourierMixing(Sublayer):
    """`Y = Re(F_n X F_d)`: a Fourier transform over tokens and one over channels.

    It has no weights (Lee-Thorp et al. 2021, "FNet: Mixing Tokens with Fourier
    Transforms", Equation 3). F_n has `exp(-2 pi i t s / n)` in row t and column s. For
    encoders: every output sees all tokens. Outputs depend on the length of the batch,
    padding included; padding tokens count as zeros.

    Args:
        method: str, "fft", or "matmul" with the matrices of cosines and sines, which
            the paper prefers for short sequences on TPUs. LiteRT and ONNX files need
            "matmul".

    Call arguments and returns: see `Sublayer`.

    Raises:
        ValueError: for packed examples, or in a decoder.
    """

    depends_on_padding = True

    @checked
    def __init__(
        self,
        method: Annotated[str, one_of(METHODS)] = "fft",
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.method = method

    def not_causal(self):
        return (
            "each output of FourierMixing sees all tokens, and FNet has no form that "
            "hides later ones. Take it for an encoder, and another mixer here."
        )

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        require_unpacked(self, context, "the transform sees a whole row")
        length, channels = x.shape[1:]
        x = ops.cast(x, "float32")
        if context.padding_mask is not None:
            x = x * ops.cast(context.padding_mask, "float32")[:, :, None]
        cosines, sines = _waves(length)
        sow(self, "intermediates", "mixing", lambda: ops.convert_to_tensor([cosines]))
        if self.method == "fft":
            y, _ = ops.fft2((x, ops.zeros_like(x)))
        else:
            over_channels = [ops.matmul(x, wave) for wave in _waves(channels)]
            y = ops.matmul(cosines, over_channels[0])
            y -= ops.matmul(sines, over_channels[1])
        # Sums over all tokens may exceed float16.
        return ops.cast(y, wide(self.dtype_policy).compute_dtype)

    def mixing_facts(self, length: int) -> MixingFacts:
        """See `Sublayer`: pictures show Re(F_n)."""
        return MixingFacts("Re(F)", signed=True)


def _waves(n):
    """`cos(2 pi t s / n)` and the sine, float32 `[n, n]`."""
    places = np.arange(n)
    angles = 2 * math.pi / n * (places[:, None] * places % n)
    return np.cos(angles).astype("float32"), np.sin(angles).astype("float32")
