"""TNN's gated Toeplitz unit."""

from typing import Annotated, Unpack

import numpy as np
from keras import ops

from remixer_tf.arguments import (
    Cache,
    NonNegativeInt,
    PositiveInt,
    Shape,
    Tensor,
    checked,
    one_of,
    within,
)
from remixer_tf.kernels.fft_product import fft_product, reference
from remixer_tf.layers.base import (
    Context,
    DecodeState,
    Sublayer,
    by_row,
    dense,
    fill_cache,
    get_activation,
    require_causal,
    require_unpacked,
    update_cache,
    wide,
)
from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.position_network import PositionNetwork
from remixer_tf.layers.sowing import MixingFacts, sow

_SHOWN = 8  # channels in pictures
Decay = Annotated[float, within("a number in (0, 1]", lambda x: 0 < x <= 1)]
METHODS = {"fft": fft_product, "matmul": reference}


class ToeplitzUnit(Sublayer):
    """`Y = (act(X W_u) * T act(X W_v)) W_o`, T a Toeplitz matrix for each channel.

    T comes from a `PositionNetwork`, so that sequences may have any length (Qin et al.
    2023, "Toeplitz Neural Network for Sequence Modeling", arXiv 2305.04749, sections
    3.2 to 3.4). The projections have biases.

    Args:
        d_hidden: int, channels that T mixes; 3 d_model in the authors' code.
        d_positions, position_layers, decay: see `PositionNetwork`.
        activation: str, see `get_activation`.
        method: str, "fft", n log n operations for n tokens, or "matmul" with matrices
            `[d_hidden, n, n]`. LiteRT and ONNX files need "matmul".
        causal: bool, T sees no later token, see `Sublayer`.

    Call arguments and returns: see `Sublayer`. Padding tokens count as zeros.

    Raises:
        ValueError: for packed examples, or decoding with a layer that is not causal.
    """

    causal = None
    rows_apart = True
    lora_projections = ("gate", "value", "out")

    @checked
    def __init__(
        self,
        d_hidden: PositiveInt,
        d_positions: PositiveInt,
        position_layers: NonNegativeInt = 3,
        decay: Decay = 0.99,
        activation: str = "silu",
        method: Annotated[str, one_of(METHODS)] = "fft",
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.d_hidden = d_hidden
        self.positions = PositionNetwork(
            d_hidden, d_positions, position_layers, decay, name="positions"
        )
        self.act = get_activation(activation)
        self.method = method

    def build(self, input_shape: Shape) -> None:
        d_model, hidden = input_shape[-1], self.d_hidden
        options = {"dtype": self.dtype_policy, "use_bias": True}
        into = {"axes": ("d_model", "d_ff"), **options}
        self.gate = dense("gate", input_shape, hidden, **into)
        self.value = dense("value", input_shape, hidden, **into)
        options["dtype"] = wide(self.dtype_policy)
        self.out = dense(
            "out", (None, hidden), d_model, axes=("d_ff", "d_model"), **options
        )
        self.positions.build((None, 1))

    def _filter(self, length):
        """The weights by s - t, from 1 - length on: float32 `[d_hidden, ..]`."""
        ahead = np.arange(1 - length, length)
        weights = ops.transpose(self.positions(-ahead))
        return weights * (ahead <= 0).astype("float32") if self.causal else weights

    def _toeplitz(self, v, length):
        """`T V`: float32 `[batch, length, d_hidden]`."""
        weights = self._filter(length)
        sow(self, "intermediates", "mixing", lambda: self._matrices(weights, length))
        x = ops.transpose(ops.cast(v, "float32"), (2, 0, 1))
        return ops.transpose(METHODS[self.method](weights, x), (1, 2, 0))

    @staticmethod
    def _matrices(weights, length):
        places = np.arange(length)
        index = length - 1 + places[None, :] - places[:, None]
        return ops.take(weights[:_SHOWN], index, axis=-1)

    def mixing_facts(self, length: int) -> MixingFacts:
        """See `Sublayer`: the first channels."""
        return MixingFacts("T", filter=self._filter(length)[:_SHOWN])

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        require_unpacked(self, context, "its transform sees a whole row")
        v = self.act(self.value(x))
        if context.padding_mask is not None:
            v = v * ops.cast(context.padding_mask, v.dtype)[:, :, None]
        return self._gated(x, self._toeplitz(v, x.shape[1]))

    def _gated(self, x, mixed):
        """`(act(X W_u) * T V) W_o`."""
        # Sums over all tokens may exceed float16.
        dtype = wide(self.dtype_policy).compute_dtype
        gate = ops.cast(self.act(self.gate(x)), dtype)
        return self.out(gate * ops.cast(mixed, dtype))

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        require_causal(self)
        shape = (batch_size, max_length, self.d_hidden)
        return {"values": ops.zeros(shape, self.compute_dtype)}

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        """See `Sublayer`: the coefficients are the same at all steps."""
        values = update_cache(cache["values"], self.act(self.value(x)), state)
        weights = self.positions(np.arange(values.shape[1]))
        distance = by_row(state.step) - state.key_positions  # [1 or batch, length]
        row = ops.take(weights, ops.maximum(distance, 0), axis=0)
        row = ops.where(distance[:, :, None] >= 0, row, 0.0)
        dtype = wide(self.dtype_policy).compute_dtype
        mixed = ops.cast(values, dtype) * ops.cast(row, dtype)
        return self._gated(x, ops.sum(mixed, 1, keepdims=True)), {"values": values}

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        values = fill_cache(cache["values"], self.act(self.value(x)))
        return self(x, context=context), {"values": values}
