"""Synthesizer's attention weights from each token alone."""

from typing import Unpack

import keras
from keras import ops

from remixer_tf.arguments import Cache, PositiveInt, Shape, Tensor, checked
from remixer_tf.errors import UserError
from remixer_tf.layers.attention import SelfAttention
from remixer_tf.layers.base import (
    Context,
    DecodeState,
    check_length,
    dense,
    fill_cache,
    require_max_length,
    require_positions,
    update_cache,
)
from remixer_tf.layers.keywords import SublayerKeywords


class DenseSynthesizer(SelfAttention):
    """`softmax(F(X)) X V W_o`: a token alone says how much of each position it reads.

    `F(x) = W_2 relu(W_1 x + b_1) + b_2`, a number for each of `max_length` positions
    and head (Tay et al. 2020, "Synthesizer", Equations 2 and 3). Factorised, two such
    functions give vectors A of `max_length / factor` and B of `factor` numbers, and
    position j has `A[j // factor] B[j % factor]` (Equations 5 and 6).

    Args:
        num_heads, d_kv, dropout_rate, use_bias: see `SelfAttention`.
        d_hidden: int, rows of W_1 for each head; None is d_kv.
        factor: int, which divides `max_length`; None for one function.
        max_length: int, the longest sequence, see `Sublayer`.
        causal: bool, see `Sublayer`.

    Call arguments and returns: see `SelfAttention`.

    Raises:
        ValueError: for a sequence longer than `max_length`, packed examples without
            positions, or a factor that does not divide `max_length`.
    """

    reorders_cache = True
    rows_apart = True
    keeps = ("value",)
    lora_projections = ("value", "out")

    @checked
    def __init__(
        self,
        num_heads: int,
        d_kv: int,
        dropout_rate: float = 0.0,
        use_bias: bool = False,
        d_hidden: PositiveInt | None = None,
        factor: PositiveInt | None = None,
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(num_heads, d_kv, dropout_rate, use_bias=use_bias, **kwargs)
        self.d_hidden = d_hidden
        self.factor = factor

    def build(self, input_shape: Shape) -> None:
        require_max_length(self)
        d_model, inner = input_shape[-1], self.num_heads * self.d_kv
        widths = [self.max_length]
        if self.factor is not None:
            if self.max_length % self.factor:
                raise UserError(
                    "A factorised DenseSynthesizer makes max_length logits of "
                    "max_length / factor and factor numbers. Received: "
                    f"max_length={self.max_length}, factor={self.factor}"
                )
            widths = [self.max_length // self.factor, self.factor]
        into = ("d_model", "heads")
        self.value = self._projection("value", d_model, inner, 1 / d_model, into)
        self.out = self._projection("out", inner, d_model, 1 / inner, into[::-1])
        hidden = self.d_hidden or self.d_kv
        options = {"dtype": self.dtype_policy, "use_bias": True}
        start = keras.initializers.RandomNormal(stddev=hidden**-0.5)
        self.wi, self.wo, self.bias = [], [], []
        for i, width in enumerate(widths):
            units = self.num_heads * hidden
            self.wi.append(dense(f"wi_{i}", input_shape, units, axes=into, **options))
            self.wo.append(self._weight(f"wo_{i}", hidden, width, start.clone()))
            self.bias.append(self._weight(f"bias_{i}", 1, width, "zeros"))
        self.dropout.build()

    def _weight(self, name, rows, width, start):
        shape, axes = (self.num_heads, rows, width), ("heads", None, None)
        return self.add_weight(
            name=name, shape=shape, axes=axes, initializer=start, autocast=False
        )

    def logits(self, x: Tensor) -> Tensor:
        """F(X): float32 `[batch, heads, length, max_length]`."""
        made = []
        for wi, wo, bias in zip(self.wi, self.wo, self.bias, strict=True):
            shape = (-1, ops.shape(x)[1], self.num_heads, wo.shape[1])
            hidden = ops.reshape(ops.relu(wi(x)), shape)
            y = ops.einsum("bthu,hus->bhts", hidden, ops.cast(wo, hidden.dtype))
            made.append(ops.cast(y, "float32") + bias)
        if self.factor is None:
            return made[0]
        a, b = made
        product = a[..., :, None] * b[..., None, :]
        return ops.reshape(product, (*ops.shape(a)[:3], self.max_length))

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        length = x.shape[1]
        check_length(self, length)
        require_positions(context)
        logits = self.logits(x)
        if context.segment_ids is None:
            logits = logits[..., :length]
        else:  # A position counts in its example.
            at = context.positions[:, None, None, :]
            logits = ops.take_along_axis(logits, at, axis=-1)
        bias = self._bias(length, context)
        return self._masked(logits, bias, self._kept(x), training)

    def _kept(self, x):
        return {"value": self._split_heads(self.value(x))}

    def _masked(self, logits, bias, kept, training=False):
        logits = logits if bias is None else logits + bias
        return self._read(logits, kept["value"], training)

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        check_length(self, max_length)
        return super().init_cache(batch_size, max_length, context)

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        cache = {"value": update_cache(cache["value"], self._kept(x)["value"], state)}
        logits = self.logits(x)[..., : cache["value"].shape[-2]]
        return self._masked(logits, self._step_bias(context, state), cache), cache

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        value = self._kept(x)["value"]
        return self(x, context=context), {"value": fill_cache(cache["value"], value)}
