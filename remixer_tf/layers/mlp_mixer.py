"""MLP-Mixer's token mixing: an MLP over positions, shared by all channels."""

from typing import Unpack

import keras
from keras import ops

from remixer_tf.arguments import Cache, PositiveInt, Shape, Tensor, checked
from remixer_tf.errors import UserError
from remixer_tf.layers.base import (
    Context,
    DecodeState,
    Sublayer,
    check_length,
    get_activation,
    require_max_length,
    require_unpacked,
)
from remixer_tf.layers.keywords import SublayerKeywords


class _TokenMLP(Sublayer):
    """The weights and hidden units of the three token-mixing MLPs.

    `wi` (gated: `wi_0`, `wi_1`) goes from positions to hidden units, `wo` back.
    Matrices start as a normal of deviation `fan_in ** -0.5` that is cut at two of it,
    which leaves 0.88 of the deviation.
    """

    @checked
    def __init__(
        self,
        d_tokens: PositiveInt,
        gated: bool = False,
        activation: str = "gelu",
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.d_tokens = d_tokens
        self.gated = gated
        self.act = get_activation(activation)

    def _build_weights(self, num_inputs, out_shape):
        """`out_shape`: of wo; its first axis is the output positions, if any."""
        names = ("wi_0", "wi_1") if self.gated else ("wi",)
        into = (self.d_tokens, num_inputs)
        self.wi = [self._weight(name, into, num_inputs) for name in names]
        self.wo = self._weight("wo", out_shape, self.d_tokens)  # [.., d_tokens]
        if not self.gated:  # [.., 1 for the channels]
            self.wi_bias = self._weight("wi_bias", (self.d_tokens, 1))
            self.wo_bias = self._weight("wo_bias", (*out_shape[:-1], 1))

    def _weight(self, name, shape, fan_in=None):
        """A matrix, or without `fan_in` a bias, which starts at 0."""
        initializer = "zeros"
        if fan_in is not None:
            initializer = keras.initializers.TruncatedNormal(stddev=fan_in**-0.5)
        axes = (None,) * len(shape)
        return self.add_weight(
            name=name, shape=shape, axes=axes, initializer=initializer
        )

    def _activate(self, hidden, units=lambda bias: bias):
        """`act(W_1 X + b_1)`, or gated `act(W_0 X) * W_1 X`; `units` picks from b_1."""
        if self.gated:
            return self.act(hidden[0]) * hidden[1]
        return self.act(hidden[0] + units(self.wi_bias))

    @staticmethod
    def _mask(x, context):
        if context.padding_mask is None:
            return x
        return x * ops.cast(context.padding_mask, x.dtype)[:, :, None]

    def _refuse_segments(self, context):
        require_unpacked(self, context, "its hidden units see all positions of a row")


class TokenMixingMLP(_TokenMLP):
    """`Y = W_2 act(W_1 X + b_1) + b_2` over all positions (MLP-Mixer, Equation 1).

    W_1 is `d_tokens x max_length` and W_2 `max_length x d_tokens`. The gated form is
    T5.1.1's GEGLU turned onto tokens, `W_2 (act(W_0 X) * W_1 X)`, without biases. A
    sequence of n tokens uses the first n columns of W_1 and rows of W_2. For encoders:
    hidden units see every position.

    Args:
        d_tokens: int, hidden units (MLP-Mixer's D_S).
        gated: bool.
        activation: str, see `get_activation`.
        max_length: int, the longest sequence, see `Sublayer`.

    Call arguments and returns: see `Sublayer`. Padding tokens count as zeros.

    Raises:
        ValueError: for a sequence longer than `max_length`, packed examples, or
            decoding.
    """

    def build(self, input_shape: Shape) -> None:
        require_max_length(self)
        self._build_weights(self.max_length, (self.max_length, self.d_tokens))

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        self._refuse_segments(context)
        length = x.shape[1]
        check_length(self, length)
        x = self._mask(x, context)
        hidden = [ops.einsum("us,bsd->bud", wi[:, :length], x) for wi in self.wi]
        y = ops.einsum("tu,bud->btd", self.wo[:length], self._activate(hidden))
        return y if self.gated else y + self.wo_bias[:length]


class _WindowMLP(_TokenMLP):
    """A token-mixing MLP over `window` tokens, for decoders."""

    causal = True

    @checked
    def __init__(
        self,
        d_tokens: int,
        window: PositiveInt,
        gated: bool = False,
        activation: str = "gelu",
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(d_tokens, gated, activation, **kwargs)
        self.window = window
        self._check_units()

    def _check_units(self):
        """Raises a UserError if the hidden units do not fit the window."""


class SlidingTokenMLP(_WindowMLP):
    """The MLP of the window that ends at each token: one output, length-free.

    `Y[t] = w_2 act(W_1 X[t-w+1 .. t] + b_1) + b_2`, zeros to the left of the first
    token, W_1 `d_tokens x window` and w_2 `d_tokens`, the same for all t: reading (a)
    of Remixer's causal Mixer baseline. The gated form is as in
    `TokenMixingMLP`. It makes `[batch, length, d_tokens, d_model]` hidden units, so it
    is for small sizes; see `BlockTokenMLP`.

    Args:
        d_tokens: int, hidden units.
        window: int, w, the tokens that one output sees.
        gated, activation: see `TokenMixingMLP`.

    Call arguments and returns: see `Sublayer`. Tokens of padding and of other packed
    examples count as zeros.
    """

    def build(self, input_shape: Shape) -> None:
        self.d_model = input_shape[-1]
        self._build_weights(self.window, (self.d_tokens,))

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        before = self.window - 1
        x = ops.pad(self._mask(x, context), [[0, 0], [before, 0], [0, 0]])
        length = x.shape[1] - before
        source = ops.arange(length)[:, None] + ops.arange(self.window)[None, :]
        windows = ops.take(x, source, axis=1)  # [batch, length, window, channels]
        if context.segment_ids is not None:
            ids = context.segment_ids
            ids = ops.take(ops.pad(ids, [[0, 0], [before, 0]]), source, axis=1)
            same = ops.equal(ids, context.segment_ids[:, :, None])
            windows *= ops.cast(same, x.dtype)[..., None]
        return self._mix(windows)

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        shape = (batch_size, self.window, self.d_model)
        return {"inputs": ops.zeros(shape, self.compute_dtype)}

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        last = cache["inputs"]
        inputs = ops.concatenate([last[:, 1:], ops.cast(x, last.dtype)], axis=1)
        return self._mix(inputs[:, None]), {"inputs": inputs}

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        inputs = ops.pad(x, [[0, 0], [self.window, 0], [0, 0]])
        # The window that ends before the step.
        inputs = ops.take(inputs, state.step + ops.arange(self.window), axis=1)
        inputs = ops.cast(inputs, cache["inputs"].dtype)
        return self(x, context=context), {"inputs": inputs}

    def _mix(self, windows):
        hidden = [ops.einsum("us,btsd->btud", wi, windows) for wi in self.wi]
        y = ops.einsum("u,btud->btd", self.wo, self._activate(hidden))
        return y if self.gated else y + self.wo_bias


class BlockTokenMLP(_WindowMLP):
    """The MLP of each block of `window` tokens, with triangular masks: causal.

    `Y = W_2 act(W_1 X + b_1) + b_2` in each block by itself, W_1 `d_tokens x window`,
    W_2 `window x d_tokens`. Hidden units form `window` groups of equal size: group m
    sees the tokens s <= m of the block, and output t reads the groups m <= t: reading
    (b) of Remixer's causal Mixer baseline. The gated form is as in
    `TokenMixingMLP`.

    Args:
        d_tokens: int, hidden units, a multiple of `window`.
        window: int, tokens of a block.
        gated, activation: see `TokenMixingMLP`.

    Call arguments and returns: see `Sublayer`. Sequences of any length; padding tokens
    count as zeros. The decoding cache holds the block's inputs and hidden units; each
    step computes one group of these.

    Raises:
        ValueError: for hidden units that the window does not divide, or packed
            examples.
    """

    def _check_units(self):
        if self.d_tokens % self.window:
            raise UserError(
                "Hidden units form one group per token of a block, so their number is "
                f"a multiple of the window. Received: d_tokens={self.d_tokens}, "
                f"window={self.window}"
            )

    def build(self, input_shape: Shape) -> None:
        self.d_model = input_shape[-1]
        self._build_weights(self.window, (self.window, self.d_tokens))

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        self._refuse_segments(context)
        return self._mix(self._mask(x, context))[0]

    def _mix(self, x):
        """The outputs of x, and the inputs and hidden units of each block."""
        length = x.shape[1]
        block = min(self.window, length)  # short sequences: no work for absent tokens
        num_blocks = -(-length // block)
        x = ops.pad(x, [[0, 0], [0, num_blocks * block - length], [0, 0]])
        x = ops.reshape(x, (-1, num_blocks, block, self.d_model))
        places = ops.arange(block)
        group = ops.arange(self.d_tokens) // (self.d_tokens // self.window)
        wi_mask = places[None, :] <= group[:, None]
        wo_mask = group[None, :] <= places[:, None]
        units = block * self.d_tokens // self.window
        hidden = [
            ops.einsum("us,bnsd->bnud", _hide(wi[:, :block], wi_mask)[:units], x)
            for wi in self.wi
        ]
        hidden = self._activate(hidden, lambda bias: bias[:units])
        wo = _hide(self.wo[:block], wo_mask)[:, :units]
        y = ops.einsum("tu,bnud->bntd", wo, hidden)
        if not self.gated:
            y += self.wo_bias[:block]
        y = ops.reshape(y, (-1, num_blocks * block, self.d_model))[:, :length]
        groups = (block, units // block, self.d_model)
        hidden = ops.reshape(hidden, (-1, num_blocks, *groups))
        return y, {"inputs": x, "hidden": hidden}

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        window, per_group = self.window, self.d_tokens // self.window
        inputs, hidden = (window, self.d_model), (window, per_group, self.d_model)
        return {
            "inputs": ops.zeros((batch_size, *inputs), self.compute_dtype),
            "hidden": ops.zeros((batch_size, *hidden), self.compute_dtype),
        }

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        # Entries of the block before lie ahead of `place`, and so are hidden.
        place, places = state.step % self.window, ops.arange(self.window)
        here, seen = ops.equal(places, place), places <= place

        def own_group(weights):
            """The rows of this group of weights or biases `[d_tokens, n]`."""
            groups = ops.reshape(weights, (self.window, -1, weights.shape[-1]))
            return ops.take(groups, place, axis=0)

        x = ops.cast(x, cache["inputs"].dtype)
        inputs = ops.where(here[None, :, None], x, cache["inputs"])
        hidden = [
            ops.einsum("us,bsd->bud", _hide(own_group(wi), seen), inputs)
            for wi in self.wi
        ]
        hidden = self._activate(hidden, own_group)[:, None]  # [batch, 1, units, d]
        hidden = ops.where(here[None, :, None, None], hidden, cache["hidden"])
        wo = ops.reshape(ops.take(self.wo, place, axis=0), (self.window, -1))
        wo = ops.reshape(_hide(wo, seen[:, None]), (1, 1, -1))
        units = ops.reshape(hidden, (-1, self.d_tokens, self.d_model))
        y = ops.matmul(wo, units)
        if not self.gated:
            y += ops.take(self.wo_bias, place, axis=0)
        return y, {"inputs": inputs, "hidden": hidden}

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        y, blocks = self._mix(x)

        def of_step(blocks, cached):
            # At the end of the last one a new block begins, which reads no cache.
            number = ops.minimum(state.step // self.window, blocks.shape[1] - 1)
            block = ops.cast(ops.take(blocks, number, axis=1), cached.dtype)
            missing = cached.shape[1] - block.shape[1]
            pads = [(0, 0), (0, missing), (0, 0), (0, 0)]
            return ops.pad(block, pads[: len(block.shape)])

        return y, {name: of_step(blocks[name], cache[name]) for name in blocks}


def _hide(weights, allowed):
    return weights * ops.cast(allowed, weights.dtype)
