"""Static token mixing: learned matrices over positions, shared by all examples."""

import math
from typing import Any, Unpack

import keras
from keras import ops

from remixer_tf.arguments import Cache, PositiveInt, Shape, Tensor, checked
from remixer_tf.errors import UserError
from remixer_tf.kernels import fft_product
from remixer_tf.kernels.mix import mix
from remixer_tf.layers.base import (
    MASKED,
    Context,
    DecodeState,
    Sublayer,
    by_row,
    check_length,
    fill_cache,
    require_causal,
    require_max_length,
    require_positions,
    softmax,
    update_cache,
    wide,
)
from remixer_tf.layers.dropout import Dropout
from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.sowing import MixingFacts, sow
from remixer_tf.layers.toeplitz import create_toeplitz_matrix

# A row whose keys are padding alone has no mass to divide by. The gradient divides by
# the square, which must stay above float32's smallest normal number, 1.2e-38.
SMALLEST_MASS = 1e-18


class LengthMixing(Sublayer):
    """`Y[t] = sum_s M[t, s] X[s] + b[t]`, with M learned and the same for all examples.

    M is a matrix of weights or a Toeplitz one, as it is or through a softmax over s
    (Remixer's `softmax(H)`; the spatial gating unit's W, gMLP Equation 2). With
    several heads each mixes its own group of channels, with an M and a b of its own. A
    sequence of n tokens uses the first n rows and columns.

    Which M an example meets:
    - causal: s > t is hidden, before the softmax or by a zero;
    - padding: padding tokens are left out of the sum and, with a softmax, the rest of
      the row is scaled to sum to 1. No example needs a matrix of its own, since the
      softmax over real keys is `softmax(H) (mask X) / softmax(H) mask`;
    - packed examples: row and column are positions inside of the segment. Other
      segments are hidden, and so is padding, whose segment is 0. Only this case makes a
      `[batch, heads, length, length]` tensor.

    M and its softmax are float32; the product runs in the compute dtype. Long Toeplitz
    products without softmax and dropout are float32 convolutions by the FFT.

    Args:
        num_mixing_heads: int, matrices, over equal groups of consecutive channels.
        toeplitz: bool, `2 max_length - 1` weights a head for `max_length ** 2`.
        softmax: bool, rows of M sum to 1.
        use_bias: bool, adds b, one number per position and head.
        kernel_initializer: of M's weights; default truncated normal of deviation 0.02.
        bias_initializer: of b.
        dropout_rate: float, elementwise on M after the softmax, inverted, one mask for
            all examples; where rows are packed, M differs from example to example, and
            so does the mask.
        max_length: int, the longest sequence, see `Sublayer`.
        causal: bool, see `Sublayer`.

    Call arguments and returns: see `Sublayer`; any number of channels.

    Raises:
        ValueError: for a sequence longer than `max_length`, channels that the heads
            do not divide, packed examples without positions, or decoding with a layer
            that is not causal.
    """

    causal = None
    reorders_cache = False
    rows_apart = True
    counted_as = "mixing"

    @checked
    def __init__(
        self,
        num_mixing_heads: PositiveInt = 1,
        toeplitz: bool = False,
        softmax: bool = False,
        use_bias: bool = False,
        kernel_initializer: Any = None,
        bias_initializer: Any = "zeros",
        dropout_rate: float = 0.0,
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.num_mixing_heads = num_mixing_heads
        self.toeplitz = toeplitz
        self.softmax = softmax
        self.use_bias = use_bias
        self.kernel_initializer = (  # Making one draws a seed.
            keras.initializers.TruncatedNormal(stddev=0.02)
            if kernel_initializer is None
            else keras.initializers.get(kernel_initializer)
        )
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.dropout_rate = dropout_rate
        # The matrix is float32, and so is its dropout.
        self.dropout = Dropout(dropout_rate, name="dropout", dtype="float32")

    def build(self, input_shape: Shape) -> None:
        require_max_length(self)
        heads, n, channels = self.num_mixing_heads, self.max_length, input_shape[-1]
        if channels % heads:
            raise UserError(
                "Mixing heads share the channels equally, so their number has to "
                f"divide the channels'. Received: num_mixing_heads={heads}, "
                f"channels={channels}"
            )
        self.group = channels // heads  # channels of a head
        self.dropout.build()
        self._build_matrix()
        if self.use_bias:
            self.spatial_bias = self.add_weight(
                name="spatial_bias",
                # [max_length], or [heads, max_length] of several
                shape=(heads, n) if heads > 1 else (n,),
                axes=("mixing_heads", None) if heads > 1 else (None,),
                initializer=self.bias_initializer,
                autocast=False,
            )

    def _build_matrix(self):
        """Makes `mixing_matrix`; a subclass may compute it, see `MadeMatrix`."""
        heads, n = self.num_mixing_heads, self.max_length
        weights = (2 * n - 1,) if self.toeplitz else (n, n)  # (n, n): target, source
        self.mixing_matrix = self.add_weight(
            name="mixing_matrix",
            shape=(heads, *weights),  # [heads, 2n-1] or [heads, n, n]
            axes=("mixing_heads", *(None for _ in weights)),
            initializer=self.kernel_initializer,
            autocast=False,
        )

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        n, channels = x.shape[1:]
        x = ops.reshape(x, (-1, n, self.num_mixing_heads, self.group))
        y = self.mix(ops.transpose(x, (2, 0, 3, 1)), context, training)
        return ops.reshape(ops.transpose(y, (1, 3, 0, 2)), (-1, n, channels))

    def mix(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        """`M X + b` for x `[heads, batch, channels, length]`."""
        n, mask = x.shape[-1], context.padding_mask
        packed = context.segment_ids is not None
        check_length(self, n)
        require_positions(context)
        if mask is not None:
            x = x * ops.cast(mask, x.dtype)[:, None]
        if not packed:
            sow(self, "intermediates", "mixing", lambda: self.matrix(n))
        linear = self.toeplitz and not self.softmax and not self.dropout_rate
        if packed:
            matrix = self.dropout(self._packed_matrix(context), training=training)
            matrix = ops.cast(matrix, x.dtype)
            y = ops.einsum("hbts,hbcs->hbct", matrix, x)  # M X, each example's M
        elif linear and fft_product.is_chosen(n):
            y = fft_product.fft_product(self._visible_weights(n), x)
        else:
            matrix = self.matrix(n)
            used = self.dropout(matrix, training=training)
            dtype = x.dtype
            if self.softmax and mask is not None:  # Small weights over a small mass.
                dtype = wide(self.dtype_policy).compute_dtype
            y = mix(ops.cast(used, dtype), ops.cast(x, dtype))  # M X
            if self.softmax and mask is not None:  # divided by softmax(H) mask
                mass = ops.einsum("hts,bs->hbt", matrix, ops.cast(mask, "float32"))
                mass = ops.where(mass > SMALLEST_MASS, mass, 1.0)[:, :, None]
                # Not times 1 / mass: LiteRT's converter multiplies by mass then.
                y = ops.cast(y, "float32") / mass
        if self.use_bias:
            b = ops.reshape(self.spatial_bias, (self.num_mixing_heads, self.max_length))
            b = ops.take(b, context.positions, axis=1) if packed else b[:, None, :n]
            # In float32: the gradient of b is a sum over all rows.
            y = ops.cast(y, "float32") + ops.cast(b, "float32")[:, :, None]
        return ops.cast(y, x.dtype)

    def matrix(self, length: int) -> Tensor:
        """M of an unpacked, unpadded sequence: float32 `[heads, length, length]`."""
        if self.toeplitz:
            weights = create_toeplitz_matrix(self._toeplitz_weights(length))
        else:
            weights = ops.convert_to_tensor(self.mixing_matrix)[:, :length, :length]
        positions = ops.arange(length)
        allowed = positions[None, :] <= positions[:, None] if self.causal else None
        return self._restrict(weights, allowed)

    def _packed_matrix(self, context):
        """M of each example: float32 `[heads, batch, length, length]`."""
        positions, segments = context.positions, context.segment_ids
        target, source = positions[:, :, None], positions[:, None, :]
        allowed = ops.equal(segments[:, :, None], segments[:, None, :])
        if self.causal:
            allowed = ops.logical_and(allowed, source <= target)
        if context.padding_mask is not None:
            real = ops.cast(context.padding_mask, "bool")[:, None, :]
            allowed = ops.logical_and(allowed, real)
        return self._restrict(self._weights(target, source), allowed)

    def _weights(self, target, source):
        """M's weights at positions that broadcast, after the axis of heads."""
        n = self.max_length
        if self.toeplitz:
            return ops.take(self.mixing_matrix, (n - 1) + source - target, axis=1)
        flat = ops.reshape(self.mixing_matrix, (self.num_mixing_heads, n * n))
        return ops.take(flat, target * n + source, axis=1)

    def _row(self, target, source):
        """M's weights of a target, or of `[batch]`, at all sources from 0 on.

        `source` is `[1, length]`. Returns `[heads, 1 or batch, length]`.
        """
        if self.toeplitz:
            return self._weights(by_row(target), source)
        # Whole rows: a file in 8 bits reads them with their scales.
        rows = ops.take(self.mixing_matrix, ops.reshape(target, (-1,)), axis=1)
        return rows[:, :, : source.shape[-1]]

    def _toeplitz_weights(self, length):
        """The weights of distances in a sequence: `[heads, 2 length - 1]`."""
        skip = self.max_length - length
        weights = ops.convert_to_tensor(self.mixing_matrix)
        return weights[:, skip : skip + 2 * length - 1]

    def _visible_weights(self, length):
        """As `_toeplitz_weights`, 0 where a causal layer would look ahead."""
        weights = self._toeplitz_weights(length)
        allowed = ops.arange(2 * length - 1) < length if self.causal else None
        return self._restrict(weights, allowed)

    def _restrict(self, weights, allowed):
        """Hides what is not `allowed` (None: nothing) and takes the softmax."""
        if self.softmax:
            if allowed is not None:
                weights = ops.where(allowed, weights, MASKED)
            return softmax(weights)
        if allowed is not None:
            weights = weights * ops.cast(allowed, weights.dtype)
        return weights

    def int8_axes(self) -> dict[str, int]:
        return {} if self.toeplitz else {"mixing_matrix": -1}

    def folded_constant(self, size: int) -> Tensor | None:
        """See `Sublayer`: M, of the length that a size makes."""
        length = math.isqrt(size // self.num_mixing_heads)
        fits = self.num_mixing_heads * length**2 == size
        return self.matrix(length) if fits and 0 < length <= self.max_length else None

    def mixing_facts(self, length: int) -> MixingFacts:
        """See `Sublayer`: the filter has the weights before any softmax."""
        weights = self._toeplitz_weights(length) if self.toeplitz else None
        if self.toeplitz and self.causal:
            weights = weights[:, :length]
        symbol = "softmax(H)" if self.softmax else "W"
        return MixingFacts(symbol, signed=not self.softmax, filter=weights)

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        """See `Sublayer`: the cache holds the inputs, of all steps to `max_length`.

        Rows and heads are one axis, and the product reads the cache in the shape in
        which a step writes it. Where one of the two does not hold, XLA copies the whole
        cache at every step: decoding 32 rows with 4 beams then takes 1.4 times as long
        (docs/results/decoding.md).

        A step reads the whole cache. Relaxed tiling (Oncescu et al. 2024, "Flash
        Inference", arXiv 2410.12982) reads less of it, which our lengths do not repay.
        """
        require_causal(self)
        check_length(self, max_length)
        shape = (batch_size * self.num_mixing_heads, max_length, self.group)
        return {"inputs": ops.zeros(shape, self.compute_dtype)}

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        """See `Sublayer`: row t of M, at step t, times the inputs so far."""
        ancestry, heads = state.ancestry, self.num_mixing_heads
        t, s = state.step, state.key_positions[None]
        apart = len(t.shape) > 0  # rows at steps of their own
        of_heads = state._replace(step=ops.repeat(t, heads)) if apart else state
        inputs = update_cache(cache["inputs"], self._as_cached(x), of_heads)
        row = self._restrict(self._row(t, s), s <= by_row(t))
        row = ops.cast(row, inputs.dtype)  # M[t]: [heads, 1 or batch, length]
        hypotheses = 1
        if apart:
            rows = ops.transpose(row, (1, 0, 2))
        elif ancestry is None:
            rows = ops.broadcast_to(row, (ops.shape(x)[0], *row.shape))
        else:  # [examples, writers, heads, hypotheses, length]
            hypotheses = ancestry.shape[1]
            rows = ops.cast(ancestry, row.dtype) * row
        rows = ops.reshape(rows, (-1, hypotheses, row.shape[-1]))
        y = ops.matmul(rows, inputs)  # M[t] X, the part of each writer
        y = ops.reshape(y, (-1, hypotheses, heads, hypotheses, self.group))
        y = ops.sum(y, axis=1)  # over writers
        if self.use_bias:
            b = ops.reshape(self.spatial_bias, (heads, self.max_length))
            b = ops.take(ops.transpose(b), t, axis=0)  # [heads], or [rows, heads]
            y = y + ops.cast(b, y.dtype)[..., None, None]
        y = ops.transpose(y, (0, 2, 1, 3))
        return ops.reshape(y, (-1, 1, heads * self.group)), {"inputs": inputs}

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        inputs = fill_cache(cache["inputs"], self._as_cached(x))
        return self(x, context=context), {"inputs": inputs}

    def _as_cached(self, x):
        """`[rows, length, channels]` to the cache's `[rows * heads, length, group]`."""
        length = x.shape[1]
        x = ops.reshape(x, (-1, length, self.num_mixing_heads, self.group))
        return ops.reshape(ops.transpose(x, (0, 2, 1, 3)), (-1, length, self.group))


class MadeMatrix(LengthMixing):
    """`LengthMixing` whose M is computed, by `make_matrix`, from other weights or none.

    A subclass overrides `_build_matrix`, which makes the weights, and `make_matrix`.
    Arguments, call arguments and returns: see `LengthMixing`.
    """

    def _build_matrix(self):
        """No weights."""

    def make_matrix(self) -> Tensor:
        """Float32 `[heads, max_length, max_length]`, or `[heads, 2 max_length - 1]`."""
        raise NotImplementedError

    @property
    def mixing_matrix(self):
        return self.make_matrix()

    def int8_axes(self) -> dict[str, int]:
        return {}
