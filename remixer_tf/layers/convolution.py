"""Lightweight and dynamic convolutions."""

from typing import Unpack

import keras
from keras import ops

from remixer_tf.arguments import Cache, PositiveInt, Shape, Tensor, checked
from remixer_tf.errors import UserError
from remixer_tf.layers.base import Context, DecodeState, Sublayer, dense, require_causal
from remixer_tf.layers.dropout import Dropout
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


class LightweightConvolution(Sublayer):
    """`Y = conv(Z, softmax(W)) W_o + b_o`, with `Z = GLU(X W_i + b_i)`.

    A depthwise convolution whose kernels W, `[heads, kernel_size]`, pass a softmax; the
    channels of a head share one (Wu et al. 2019, "Pay Less Attention with Lightweight
    and Dynamic Convolutions", section 3 and Figure 2). An encoder's window is around
    the token, a decoder's ends at it.

    Args:
        num_heads: int, which divides the channels.
        kernel_size: int, tokens of the window.
        dropout_rate: float, on the softmax's results (the paper's DropConnect).
        causal: bool, see `Sublayer`.

    Call arguments and returns: see `Sublayer`. Sequences may have any length. The
    decoding cache holds `kernel_size` tokens.

    Raises:
        ValueError: for heads that do not divide the channels.
    """

    causal = None
    rows_apart = True
    lora_projections = ("wi", "out")

    @checked
    def __init__(
        self,
        num_heads: PositiveInt,
        kernel_size: PositiveInt,
        dropout_rate: float = 0.0,
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.kernel_size = kernel_size
        self.dropout = Dropout(dropout_rate, name="dropout", dtype="float32")

    def build(self, input_shape: Shape) -> None:
        self.d_model = d_model = input_shape[-1]
        if d_model % self.num_heads:
            raise UserError(
                "Heads share the channels equally, so their number divides the "
                f"channels'. Received: num_heads={self.num_heads}, channels={d_model}"
            )
        options = {"dtype": self.dtype_policy, "use_bias": True}
        axes = ("d_model", None)
        self.wi = dense("wi", input_shape, 2 * d_model, axes=axes, **options)
        self._build_kernels()
        self.out = dense("out", input_shape, d_model, axes=axes, **options)
        self.dropout.build()

    def _build_kernels(self):
        self.kernels = self.add_weight(
            name="kernels",
            shape=(self.num_heads, self.kernel_size),
            axes=(None, None),
            initializer=keras.initializers.GlorotUniform(),
            autocast=False,
        )

    def _kernels(self, z):
        """softmax(W): float32 `[1, 1, heads, kernel_size]`."""
        return ops.softmax(ops.convert_to_tensor(self.kernels))[None, None]

    def _sow(self, matrices):
        sow(self, "intermediates", "mixing", lambda: matrices()[0])

    def _gated(self, x):
        """GLU(X W_i + b_i), what is convolved."""
        z, gate = ops.split(self.wi(x), 2, axis=-1)
        return z * ops.sigmoid(gate)

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        z = self._gated(x)
        kernels = self._kernels(z)
        self._sow(lambda: band(kernels, x.shape[1], self.causal))
        used = self.dropout(kernels, training=training)
        return self.out(convolve(z, used, self.causal, context))

    def mixing_facts(self, length: int) -> MixingFacts:
        """See `Sublayer`: softmax(W) as a band."""
        return MixingFacts("softmax(W)", signed=False)

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        require_causal(self)
        size = self.kernel_size, self.d_model
        return {"inputs": empty_window(batch_size, *size, self.compute_dtype)}

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        z = self._gated(x)
        window = next_window(cache["inputs"], z, state)
        y = read_window(window, self._kernels(z), state)
        return self.out(y), {"inputs": window}

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        window = window_at(self._gated(x), state, cache["inputs"])
        return self(x, context=context), {"inputs": window}


class DynamicConvolution(LightweightConvolution):
    """`LightweightConvolution` whose kernels come from the token: `softmax(Z[t] W)`.

    W is `[d_model, heads * kernel_size]` (Wu et al. 2019, section 4).

    Args, call arguments, returns and errors: see `LightweightConvolution`.
    """

    lora_projections = ("wi", "kernels", "out")

    def _build_kernels(self):
        shape, units = (None, None, self.d_model), self.num_heads * self.kernel_size
        self.kernels = dense(
            "kernels", shape, units, self.dtype_policy, axes=("d_model", None)
        )

    def _kernels(self, z):
        kernels = ops.cast(self.kernels(z), "float32")
        shape = (-1, ops.shape(z)[1], self.num_heads, self.kernel_size)
        return ops.softmax(ops.reshape(kernels, shape))

    def _sow(self, matrices):
        sow(self, "intermediates", "attention", matrices)
