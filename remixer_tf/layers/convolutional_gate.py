"""cgMLP's gate: gMLP's, with a convolution in the matrix's place."""

from typing import Any, Unpack

import keras
from keras import ops

from remixer_tf.arguments import Cache, PositiveInt, Shape, Tensor, checked
from remixer_tf.errors import UserError
from remixer_tf.layers.base import Context, DecodeState, Sublayer, require_causal
from remixer_tf.layers.gmlp import SpatialGatingUnit
from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.sowing import MixingFacts, sow
from remixer_tf.layers.window import (
    band,
    convolve,
    empty_window,
    next_window,
    read_window,
    window_at,
)


class DepthwiseConvolution(Sublayer):
    """`Y[t, c] = sum_j W[j, c] X[t + j - before, c] + b[c]`, a kernel for each channel.

    Args:
        kernel_size: int, tokens of the window; a decoder's ends at the token.
        kernel_initializer, bias_initializer: of W and b.
        causal: bool, see `Sublayer`.

    Call arguments and returns: see `Sublayer`; sequences of any length.
    """

    causal = None
    rows_apart = True
    counted_as = "mixing"

    @checked
    def __init__(
        self,
        kernel_size: PositiveInt,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.kernel_size = kernel_size
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, input_shape: Shape) -> None:
        self.channels = input_shape[-1]
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.kernel_size, self.channels),
            axes=(None, "d_ff"),
            initializer=self.kernel_initializer,
        )
        self.bias = self.add_weight(
            name="bias",
            shape=(self.channels,),
            axes=("d_ff",),
            initializer=self.bias_initializer,
        )

    def _kernels(self):
        return ops.transpose(self.kernel)[None, None]

    def _add_bias(self, y):
        return y + ops.cast(self.bias, y.dtype)

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        kernels = self._kernels()

        def mean():
            shown = ops.mean(kernels, axis=2, keepdims=True)
            return band(shown, x.shape[1], self.causal)[0]

        sow(self, "intermediates", "mixing", mean)
        return self._add_bias(convolve(x, kernels, self.causal, context))

    def mixing_facts(self, length: int) -> MixingFacts:
        """See `Sublayer`: the mean of all channels' kernels, as a band."""
        return MixingFacts("mean(W)")

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        require_causal(self)
        size = self.kernel_size, self.channels
        return {"inputs": empty_window(batch_size, *size, self.compute_dtype)}

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        window = next_window(cache["inputs"], x, state)
        y = read_window(window, self._kernels(), state)
        return self._add_bias(y), {"inputs": window}

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        window = window_at(x, state, cache["inputs"])
        return self(x, context=context), {"inputs": window}


class ConvolutionalGate(SpatialGatingUnit):
    """`Z_1 * (conv(LayerNorm(Z_2)) + b)`, the gate of cgMLP, for `GatedMLP.gate`.

    The convolutional spatial gating unit (Peng et al. 2022, "Branchformer", section
    3.2; Sakuma et al. 2021, "MLP-based architecture with variable length input for
    automatic speech recognition"): gMLP's unit with a depthwise convolution for W. The
    kernel starts near 0 and b at 1, as gMLP's do. Sequences may have any length.

    Args:
        kernel_size: int, tokens of the window; 31 in Branchformer.
        norm_epsilon: float, see `LayerNorm`.
        causal: bool, see `Sublayer`.

    Other arguments but toeplitz and num_mixing_heads, call arguments and returns: see
    `SpatialGatingUnit`.
    """

    reorders_cache = True

    @checked
    def __init__(
        self,
        kernel_size: PositiveInt,
        norm_epsilon: float = 1e-6,
        **kwargs: Unpack[SublayerKeywords],
    ):
        self.kernel_size = kernel_size
        super().__init__(norm_epsilon=norm_epsilon, **kwargs)

    def make_mixing(self, **options):
        for name, plain in (("toeplitz", False), ("num_mixing_heads", 1)):
            if options[name] != plain:
                raise UserError(
                    f"ConvolutionalGate has no {name}: a convolution has a kernel for "
                    "each channel and distance. Received: "
                    f"{name}={options[name]!r}. Leave it out."
                )
        names = "kernel_initializer bias_initializer causal max_length name dtype"
        options = {name: options[name] for name in names.split()}
        return DepthwiseConvolution(self.kernel_size, **options)
