"""Static token mixing: learned matrices over positions, shared by all examples."""

import keras
from keras import ops

from remixer_tf.errors import UserError
from remixer_tf.layers.base import MASKED, Sublayer, require_max_length
from remixer_tf.layers.checks import check_integers
from remixer_tf.layers.dropout import Dropout
from remixer_tf.layers.mixing_cache import make_mixing_cache, mix_step
from remixer_tf.layers.products import mix
from remixer_tf.layers.sowing import sow

# From this length on, a Toeplitz product goes by the FFT. Measured on two CPU cores
# with 512 channels in float32 (benchmarks/mixing_fft.py): the forward pass alone gains
# from 512 on, forward and backward together from 1,024 on. No accelerator was measured.
FFT_FROM_LENGTH = 1024

# A row whose keys are padding alone has no mass to divide by. The gradient divides by
# the square, which must stay above float32's smallest normal number, 1.2e-38.
SMALLEST_MASS = 1e-18


def create_toeplitz_matrix(w):
    """Lays `2n-1` weights out as an `n x n` Toeplitz matrix: `t[i, j] = w[n-1+j-i]`.

    The listing of gMLP's appendix: pad, tile, reshape, so that each row is the padded
    vector turned by one more place, then cut. The printed listing lacks the line that
    drops the last elements before the reshape, without which the sizes do not match;
    and it pads by n elements, where one is enough: the gradient, a sum over the tiles,
    then takes about a third of the time on JAX.

    Args:
        w: float `[..., 2n - 1]`; `w[n-1]` is the diagonal, smaller indices look back,
            larger ones look ahead.

    Returns:
        float `[..., n, n]`.
    """
    lead, size = w.shape[:-1], w.shape[-1]
    n = (size + 1) // 2
    no_pad = [[0, 0]] * len(lead)
    t = ops.pad(w, no_pad + [[0, 1]])  # [..., 2n]
    t = ops.tile(t, [1] * len(lead) + [n])  # [..., n * 2n]
    t = t[..., : n * size]  # the missing line
    t = ops.reshape(t, (*lead, n, size))
    return t[..., n - 1 :]


def gather_toeplitz_matrix(w):
    """`create_toeplitz_matrix` written as a gather: the definition itself."""
    n = (w.shape[-1] + 1) // 2
    positions = ops.arange(n)
    return ops.take(w, (n - 1) + positions[None, :] - positions[:, None], axis=-1)


def fft_toeplitz_product(w, x):
    """`Y[t] = sum_s w[n-1+s-t] X[s]`: the Toeplitz product as a convolution.

    The matrix is never made: n log n operations for n^2. Of length 2n, so that the
    convolution's wrap-around meets zeros only.

    Args:
        w: float32 `[heads, 2n - 1]`, as in `create_toeplitz_matrix`.
        x: float `[heads, rows, n]`.

    Returns:
        float32, the shape of x.
    """
    n = x.shape[-1]
    # The weight of lag t - s at index t - s modulo 2n; lag n is met by zeros.
    lags = ops.flip(w, axis=-1)  # from -(n-1) to n-1
    lags = ops.concatenate(
        [lags[:, n - 1 :], ops.zeros_like(w[:, :1]), lags[:, : n - 1]], axis=-1
    )
    x = ops.pad(ops.cast(x, "float32"), [[0, 0], [0, 0], [0, n]])
    real, imaginary = ops.rfft(x, fft_length=2 * n)  # [heads, rows, n+1]
    lag_real, lag_imaginary = (
        part[:, None, :] for part in ops.rfft(lags, fft_length=2 * n)
    )
    product = (
        real * lag_real - imaginary * lag_imaginary,
        real * lag_imaginary + imaginary * lag_real,
    )
    return ops.irfft(product, fft_length=2 * n)[..., :n]


def _lay(x, names, axes):
    """Puts the axes called `names` in the order of `axes`; those that lack are 1."""
    x = ops.transpose(x, [names.index(axis) for axis in axes if axis in names])
    return ops.expand_dims(x, [i for i, axis in enumerate(axes) if axis not in names])


class LengthMixing(Sublayer):
    """`Y[t] = sum_s M[t, s] X[s] + b[t]`, with M learned and the same for all examples.

    M is a matrix of weights or a Toeplitz one, as it is or through a softmax over s
    (Remixer's `softmax(H)`; the spatial gating unit's W, gMLP Equation 2). With
    several heads each mixes its own group of channels, with an M and a b of its own. A
    sequence of n tokens uses the first n rows and columns.

    Which M an example meets:
    - causal: s > t is hidden, before the softmax or by a zero;
    - padding: padding tokens are left out of the sum and, with a softmax, the rest of
      the row is scaled to sum to 1. As softmax restricted to the real keys equals
      `softmax(H) (mask X) / softmax(H) mask`, this needs no matrix per example;
    - packed examples: row and column are the positions inside the segment, and other
      segments, padding's 0 included, are hidden. Only this case makes a
      `[batch, heads, length, length]` tensor.

    M and its softmax are float32; the product runs in the compute dtype. Long Toeplitz
    products without softmax and dropout are float32 convolutions by the FFT.

    Args:
        num_heads: int, matrices, over equal groups of consecutive channels.
        toeplitz: bool, `2 max_length - 1` weights a head for `max_length ** 2`.
        softmax: bool, rows of M sum to 1.
        use_bias: bool, adds b, one number per position and head.
        renormalize: bool. False leaves the mass of padding keys missing from a row,
            as Mesh TensorFlow does; outputs then depend on the padded length.
        dropout_rate: float, elementwise on M after the softmax, inverted, one mask
            for all examples; where rows are packed or softmax meets padding, M differs
            from example to example, and so does the mask.
        kernel_initializer: of M's weights; default truncated normal of deviation 0.02.
        bias_initializer: of b.
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

    def __init__(
        self,
        num_heads=1,
        toeplitz=False,
        softmax=False,
        use_bias=False,
        renormalize=True,
        dropout_rate=0.0,
        kernel_initializer=None,
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_integers(num_heads=num_heads)
        self.num_heads = num_heads
        self.toeplitz = toeplitz
        self.softmax = softmax
        self.use_bias = use_bias
        self.renormalize = renormalize
        self.dropout_rate = dropout_rate
        self.kernel_initializer = (
            keras.initializers.TruncatedNormal(stddev=0.02)
            if kernel_initializer is None
            else keras.initializers.get(kernel_initializer)
        )
        self.bias_initializer = keras.initializers.get(bias_initializer)
        # The matrix is float32, and so is its dropout.
        self.dropout = Dropout(dropout_rate, name="dropout", dtype="float32")

    def build(self, input_shape):
        require_max_length(self)
        self.width = input_shape[-1]
        if self.width % self.num_heads:
            raise UserError(
                "Mixing heads share the channels equally, so their number has to "
                f"divide the width. Received: num_heads={self.num_heads}, "
                f"width={self.width}"
            )
        n = self.max_length
        weights = (2 * n - 1,) if self.toeplitz else (n, n)  # (n, n): target, source
        several = self.num_heads > 1
        self.mixing_matrix = self.add_weight(
            name="mixing_matrix",
            shape=(self.num_heads, *weights),  # [heads, 2n-1] or [heads, n, n]
            axes=("mixing_heads", *(None for _ in weights)),
            initializer=self.kernel_initializer,
            autocast=False,
        )
        if self.use_bias:
            self.spatial_bias = self.add_weight(
                name="spatial_bias",
                # [max_length], or [heads, max_length] of several
                shape=(self.num_heads, n) if several else (n,),
                axes=("mixing_heads", None) if several else (None,),
                initializer=self.bias_initializer,
                autocast=False,
            )
        self.dropout.build()

    @property
    def depends_on_padding(self):
        """See `Sublayer`: the mass of padding keys is missing from a row."""
        return self.softmax and not self.renormalize and not self.causal

    def matrix(self, length):
        """M of an unpacked, unpadded sequence: float32 `[heads, length, length]`."""
        if self.toeplitz:
            weights = create_toeplitz_matrix(self._toeplitz_weights(length))
        else:
            weights = ops.convert_to_tensor(self.mixing_matrix)[:, :length, :length]
        positions = ops.arange(length)
        allowed = positions[None, :] <= positions[:, None] if self.causal else None
        return self._restrict(weights, allowed)

    def _toeplitz_weights(self, length):
        """The weights of distances in a sequence: `[heads, 2 length - 1]`."""
        skip = self.max_length - length
        weights = ops.convert_to_tensor(self.mixing_matrix)
        return weights[:, skip : skip + 2 * length - 1]

    def call(self, x, context, training=False):
        if context.segment_ids is not None:
            return self._mix_segments(x, context, training)
        # What the product takes less time with, forward and backward, on a CPU.
        axes = "hlbc" if keras.backend.backend() == "jax" else "hbcl"
        x = _lay(self._split_heads(x), "blhc", axes)
        y = self.mix(x, axes, context.padding_mask, training)
        return self._merge_heads(_lay(y, axes, "blhc"))

    def mix(self, x, axes, padding_mask=None, training=False):
        """What `call` does, but for packed examples, to axes in any order.

        With the heads first and the length second or last, each head's matrix
        multiplies one matrix. Of T5's order it multiplies one an example and head.

        Args:
            x: float, batch, length, heads and channels of a head, in the order of
                `axes`.
            axes: str, as "hbcl", an initial for each.
            padding_mask: int32 `[batch, length]`, see `Context`, or None.
            training: bool.

        Returns:
            float, the shape of x.
        """
        length = x.shape[axes.index("l")]
        self._check_length(length)
        if padding_mask is not None:
            x = x * _lay(ops.cast(padding_mask, x.dtype), "bl", axes)
        sow(self, "intermediates", "mixing", lambda: self.matrix(length))
        linear = self.toeplitz and not self.softmax and not self.dropout_rate
        if linear and length >= FFT_FROM_LENGTH:
            weights = self._toeplitz_weights(length)
            if self.causal:
                behind = ops.arange(2 * length - 1) < length
                weights = weights * ops.cast(behind, weights.dtype)
            x = _lay(x, axes, "hbcl")
            rows = ops.reshape(x, (self.num_heads, -1, length))
            y = ops.cast(fft_toeplitz_product(weights, rows), x.dtype)
            y = ops.reshape(y, (self.num_heads, -1, *x.shape[2:]))
            y = _lay(y, "hbcl", axes)
        else:
            matrix = self.matrix(length)
            used = ops.cast(self.dropout(matrix, training=training), x.dtype)
            y = mix(used, x, axes)
        if self.softmax and self.renormalize and padding_mask is not None:
            mask = ops.cast(padding_mask, "float32")
            mass = ops.einsum("hts,bs->hbt", matrix, mask)
            mass = _lay(ops.where(mass > SMALLEST_MASS, mass, 1.0), "hbl", axes)
            # Not times 1 / mass: of that, LiteRT's converter makes a product with mass.
            y = ops.cast(ops.cast(y, "float32") / mass, y.dtype)
        if self.use_bias:
            bias = ops.cast(self._head_biases()[:, :length], y.dtype)
            y = y + _lay(bias, "hl", axes)
        return y

    def _mix_segments(self, x, context, training):
        if context.positions is None:
            raise UserError(
                "Packed examples need their positions: mixing takes the rows and "
                "columns of its matrix by the position inside the example. Received: "
                "segment_ids without positions. Pass *_positions beside *_segment_ids."
            )
        self._check_length(x.shape[1])
        if context.padding_mask is not None:
            x = x * ops.cast(context.padding_mask, x.dtype)[:, :, None]
        positions, segments = context.positions, context.segment_ids
        target, source = positions[:, :, None], positions[:, None, :]
        n = self.max_length
        if self.toeplitz:
            index, flat = (n - 1) + source - target, self.mixing_matrix
        else:
            index = target * n + source
            flat = ops.reshape(self.mixing_matrix, (self.num_heads, n * n))
        weights = ops.take(flat, index, axis=1)  # [heads, batch, length, length]
        allowed = ops.equal(segments[:, :, None], segments[:, None, :])
        if self.causal:
            allowed = ops.logical_and(allowed, source <= target)
        if context.padding_mask is not None and self.renormalize:
            real = ops.cast(context.padding_mask, "bool")[:, None, :]
            allowed = ops.logical_and(allowed, real)
        matrix = self.dropout(self._restrict(weights, allowed), training=training)
        matrix = ops.cast(matrix, x.dtype)
        y = ops.einsum("hbts,bshc->bthc", matrix, self._split_heads(x))
        y = self._merge_heads(y)
        return self._add_bias(y, lambda b: ops.take(b, positions, axis=0))

    def init_cache(self, batch_size, max_length, context):
        if not self.causal:
            raise UserError(
                "Only causal mixing can decode step by step. Received: layer "
                f"'{self.path}', which is not causal. A decoder's stack makes it so."
            )
        self._check_length(max_length)
        per_head = self.width // self.num_heads
        return make_mixing_cache(
            batch_size, self.num_heads, per_head, max_length, self.compute_dtype
        )

    def decode_step(self, x, cache, context, state):
        x = self._split_heads(x)[:, 0]
        y, cache = mix_step(
            x, cache, state, lambda targets: self._rows(targets, state.key_positions)
        )
        y = ops.reshape(y, (-1, 1, self.width))
        return self._add_bias(y, lambda b: ops.take(b, state.step, axis=0)), cache

    def _rows(self, targets, key_positions):
        """Causal rows of M over the cache: float32 `[heads, targets, length]`."""
        keys = key_positions[None]
        targets = ops.minimum(targets, self.max_length - 1)[:, None]
        weights = ops.convert_to_tensor(self.mixing_matrix)
        if self.toeplitz:
            index = (self.max_length - 1) + keys - targets
            rows = ops.take(weights, index, axis=1)
        else:
            rows = ops.take(weights, targets[:, 0], axis=1)[:, :, : keys.shape[1]]
        return self._restrict(rows, keys <= targets)

    def _restrict(self, weights, allowed):
        """Hides what is not `allowed` (None: nothing) and takes the softmax."""
        if self.softmax:
            if allowed is not None:
                weights = ops.where(allowed, weights, MASKED)
            return ops.softmax(weights)
        if allowed is not None:
            weights = weights * ops.cast(allowed, weights.dtype)
        return weights

    def _add_bias(self, y, at):
        """Adds to y what `at` takes of b's `[max_length, heads]`, if there is a b."""
        if not self.use_bias:
            return y
        bias = ops.cast(at(ops.transpose(self._head_biases())), y.dtype)[..., None]
        return self._merge_heads(self._split_heads(y) + bias)

    def _head_biases(self):
        """b as `[heads, max_length]`, of one head too."""
        return ops.reshape(self.spatial_bias, (self.num_heads, self.max_length))

    def _split_heads(self, x):
        per_head = self.width // self.num_heads
        return ops.reshape(x, (-1, x.shape[1], self.num_heads, per_head))

    def _merge_heads(self, x):
        return ops.reshape(x, (-1, x.shape[1], self.width))

    def _check_length(self, length):
        if length > self.max_length:
            raise UserError(
                f"A sequence of {length} tokens is longer than the mixing matrix of "
                f"layer '{self.path}', made for max_length={self.max_length}. Shorten "
                "the sequences or build the model with a larger max_length."
            )
