"""Multi-head attention; by default T5's way, without biases and 1 / sqrt(d_kv)."""

import functools
from typing import Unpack

import keras
from keras import ops

from remixer_tf.arguments import (
    Cache,
    PositiveFloat,
    PositiveInt,
    Shape,
    Tensor,
    checked,
)
from remixer_tf.kernels.scores import scores
from remixer_tf.layers.base import (
    MASKED,
    Context,
    DecodeState,
    Sublayer,
    by_row,
    dense,
    fill_cache,
    read_cache,
    require_causal,
    softmax,
    split_examples,
    update_cache,
)
from remixer_tf.layers.dropout import Dropout
from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.position_bias import RelativePositionBias, bias_of_step
from remixer_tf.layers.sowing import sow


class AttentionKeywords(SublayerKeywords, total=False):
    """Keywords that `SelfAttention` and `CrossAttention` share, see there."""

    use_bias: bool
    scale_query: bool
    stddev: float | None
    d_out: int | None
    zero_out: bool


class SelfAttentionKeywords(AttentionKeywords, total=False):
    """Keywords of a preset of `SelfAttention`, see there."""

    dropout_rate: float
    relative_bias: bool
    stack_bias: bool


class _Attention(Sublayer):
    """`softmax(Q K^T + bias) V W_o`, with Q = X W_q, K = M W_k, V = M W_v.

    In T5 the 1/sqrt(d_kv) of the usual form is inside the query's initialiser, as Mesh
    TensorFlow has it:
    q ~ N(0, 1/(d_model d_kv)), k, v ~ N(0, 1/d_model), o ~ N(0, 1/(heads d_kv)).
    The products Q K^T and the stack's position bias come in the compute dtype; their
    sum, the mask and the softmax are float32. Arguments: see `SelfAttention`.
    """

    lora_projections = ("query", "value")

    @checked
    def __init__(
        self,
        num_heads: PositiveInt,
        d_kv: PositiveInt,
        dropout_rate: float = 0.0,
        use_bias: bool = False,
        scale_query: bool = False,
        stddev: PositiveFloat | None = None,
        d_out: PositiveInt | None = None,
        zero_out: bool = False,
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.d_kv = d_kv
        self.dropout_rate = dropout_rate
        self.use_bias = use_bias
        self.scale_query = scale_query
        self.stddev = stddev
        self.d_out = d_out
        self.zero_out = zero_out
        self.dropout = Dropout(
            dropout_rate, shared_axes=(2,), name="dropout", dtype=self.dtype_policy
        )

    def build(self, input_shape: Shape) -> None:
        d_model = input_shape[-1]
        inner = self.num_heads * self.d_kv
        project = self._projection
        # A small attention into hidden units (`d_out`) is never split by heads.
        into = ("d_model", None if self.d_out else "heads")
        back = (into[1], "d_ff" if self.d_out else "d_model")
        self.query = project("query", d_model, inner, 1 / (d_model * self.d_kv), into)
        self.key = project("key", d_model, inner, 1 / d_model, into)
        self.value = project("value", d_model, inner, 1 / d_model, into)
        self.out = project("out", inner, self.d_out or d_model, 1 / inner, back)
        self.dropout.build()

    def _projection(self, name, d_in, d_out, variance, axes):
        if name == "out" and self.zero_out:
            initializer = "zeros"
        elif self.stddev is None:
            initializer = keras.initializers.RandomNormal(stddev=variance**0.5)
        else:
            initializer = keras.initializers.TruncatedNormal(stddev=self.stddev)
        options = {"use_bias": self.use_bias, "axes": axes}
        shape, dtype = (None, None, d_in), self.dtype_policy
        return dense(name, shape, d_out, dtype, initializer, **options)

    def _query(self, x):
        query = self._split_heads(self.query(x))
        return query * self.d_kv**-0.5 if self.scale_query else query

    def _kept(self, x):
        """Keys and values of x, what a cache keeps: `[batch, heads, length, d_kv]`."""
        return {
            "key": self._split_heads(self.key(x)),
            "value": self._split_heads(self.value(x)),
        }

    def _split_heads(self, x):
        """`[batch, length, heads * d_kv]` to `[batch, heads, length, d_kv]`."""
        x = ops.reshape(x, (-1, ops.shape(x)[1], self.num_heads, self.d_kv))
        return ops.transpose(x, (0, 2, 1, 3))

    def _attend(self, x, kept, bias, training=False):
        """`bias`: float32, in the shape of the logits or broadcast to it; or None."""
        logits = scores(self._query(x), kept["key"])  # Q K^T
        logits = ops.cast(logits, "float32")
        if bias is not None:
            logits += bias
        return self._read(logits, kept["value"], training)

    def _read(self, logits, value, training=False, ancestry=None):
        """`softmax(logits) V W_o`; logits float32 `[batch, heads, length, source]`."""
        weights = softmax(logits)
        sow(self, "intermediates", "attention", weights)
        weights = ops.cast(weights, value.dtype)
        weights = self.dropout(weights, training=training)
        mixed = read_cache(weights, value, ancestry)  # softmax(..) V
        mixed = ops.transpose(mixed, (0, 2, 1, 3))
        inner = self.num_heads * self.d_kv
        return self.out(ops.reshape(mixed, (-1, ops.shape(mixed)[1], inner)))


def _mask_bias(allowed):
    """0 where `allowed`, a large negative number elsewhere; float32."""
    return (1.0 - ops.cast(allowed, "float32")) * MASKED


def _sum(biases):
    """Their sum in float32, or None if there are none."""
    biases = [ops.cast(bias, "float32") for bias in biases]
    return functools.reduce(ops.add, biases) if biases else None


class SelfAttention(_Attention):
    """Multi-head self-attention; by default T5's, with its stack's position bias.

    Args:
        num_heads: int.
        d_kv: int, width of a head.
        dropout_rate: float, on the attention weights, one mask for all queries.
        relative_bias: bool, adds a `RelativePositionBias` of this layer's own. T5
            shares one among the layers of a stack instead: `context.position_bias`.
        stack_bias: bool, whether to add `context.position_bias`, if there is one.
        use_bias: bool, whether the four projections have biases.
        scale_query: bool, whether Q is divided by sqrt(d_kv). T5 has that in Q's
            initialiser.
        stddev: float, the projections start truncated normal of this deviation. None:
            T5's initialisers.
        d_out: int, channels of the output; None is d_model, as sublayers have it.
        zero_out: bool, whether W_o starts at zero.
        causal: bool, whether a token sees only itself and earlier ones, see `Sublayer`.

    Call arguments and returns: see `Sublayer`. `context.padding_mask` hides padding
    keys, `context.segment_ids` other packed examples.

    Raises:
        ValueError: when decoding is asked of a layer that is not causal.
    """

    causal = None
    reorders_cache = False
    rows_apart = True
    keeps = ("key", "value")  # of `_kept`

    @checked
    def __init__(
        self,
        num_heads: int,
        d_kv: int,
        dropout_rate: float = 0.0,
        relative_bias: bool = False,
        stack_bias: bool = True,
        **kwargs: Unpack[AttentionKeywords],
    ):
        super().__init__(num_heads, d_kv, dropout_rate, **kwargs)
        self.stack_bias = stack_bias
        self.relative_bias = relative_bias
        if relative_bias:
            self.position_bias = RelativePositionBias(
                num_heads, self.stack_facts.bidirectional, name="position_bias"
            )

    def build(self, input_shape: Shape) -> None:
        super().build(input_shape)
        self._build_position_bias()

    def _build_position_bias(self):
        if self.relative_bias:
            self.stack_facts.tell(self.position_bias)
            self.position_bias.build()

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        bias = self._bias(x.shape[1], context)
        return self._attend(x, self._kept(x), bias, training)

    def _bias(self, length, context):
        """The biases and masks that a whole sequence adds to its logits."""
        biases = []
        if self.relative_bias:
            biases.append(self.position_bias.whole(length))
        if self.stack_bias and context.position_bias is not None:
            biases.append(context.position_bias)
        if self.causal:
            positions = ops.arange(length, dtype="int32")
            seen = positions[None, :] <= positions[:, None]
            biases.append(_mask_bias(seen)[None, None])
        if context.padding_mask is not None:
            biases.append(_mask_bias(context.padding_mask)[:, None, None, :])
        if (ids := context.segment_ids) is not None:
            same = ops.equal(ids[:, :, None], ids[:, None, :])
            biases.append(_mask_bias(same)[:, None])
        return _sum(biases)

    def _step_bias(self, context, state):
        """The biases and masks of position `state.step`."""
        biases = []
        if self.relative_bias:
            biases.append(bias_of_step(self.position_bias, state))
        if self.stack_bias and context.position_bias is not None:
            biases.append(context.position_bias)
        seen = state.key_positions <= by_row(state.step)
        return _sum([*biases, _mask_bias(seen)[:, None, None]])

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        require_causal(self)
        shape = (batch_size, self.num_heads, max_length, self.d_kv)
        return dict.fromkeys(self.keeps, ops.zeros(shape, self.compute_dtype))

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        kept = self._kept(x)
        cache = {name: update_cache(cache[name], kept[name], state) for name in kept}
        bias = self._step_bias(context, state)
        if state.ancestry is not None:
            return self._attend_to_ancestors(x, cache, bias, state.ancestry), cache
        return self._attend(x, cache, bias), cache

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        kept = self._kept(x)
        y = self._attend(x, kept, self._bias(x.shape[1], context))
        return y, {name: fill_cache(cache[name], kept[name]) for name in kept}

    def _attend_to_ancestors(self, x, cache, bias, ancestry):
        """As `_attend`, to the ancestors of each hypothesis alone."""
        hypotheses = ancestry.shape[1]
        query = self._query(ops.reshape(x, (-1, hypotheses, x.shape[-1])))
        query = ops.repeat(query, hypotheses, axis=0)
        logits = ops.einsum("bhtk,bhsk->bhts", query, cache["key"])
        logits = split_examples(ops.cast(logits, "float32"), hypotheses)
        logits = ops.sum(logits * ops.cast(ancestry, "float32"), axis=1) + bias
        y = self._read(logits, cache["value"], ancestry=ancestry)
        return ops.reshape(y, (-1, 1, y.shape[-1]))


class CrossAttention(_Attention):
    """Multi-head attention from a decoder to `context.encoded`; no position bias.

    Args:
        num_heads, d_kv, dropout_rate, use_bias, scale_query, stddev, d_out, zero_out:
            see `SelfAttention`.

    Call arguments and returns: see `Sublayer`. While decoding, the keys and values of
    the encoded sequence are computed once, by `init_cache`.
    """

    causal = True  # It reads no other token of the decoder.
    reorders_cache = False
    rows_apart = True
    reads_encoder = True

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        biases = self._encoded_bias(context)
        if context.segment_ids is not None:
            same = ops.equal(
                context.segment_ids[:, :, None],
                context.encoded_segment_ids[:, None, :],
            )
            biases.append(_mask_bias(same)[:, None])
        return self._attend(x, self._kept(context.encoded), _sum(biases), training)

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        return self._kept(context.encoded)

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        # Hypotheses of an example, which are successive rows, read the same keys: they
        # are so many positions of it.
        examples = ops.shape(cache["key"])[0]
        queries = ops.reshape(x, (examples, -1, x.shape[-1]))
        bias = _sum(self._encoded_bias(context))
        y = self._attend(queries, cache, bias)
        return ops.reshape(y, (-1, x.shape[1], y.shape[-1])), cache

    prefill = decode_step

    @staticmethod
    def _encoded_bias(context):
        """A list: the bias that hides the encoder's padding, if there is any."""
        if context.encoded_mask is None:
            return []
        return [_mask_bias(context.encoded_mask)[:, None, None, :]]
