"""Sublayers of BERT: biases everywhere, truncated normal initial values, exact gelu."""

from typing import Unpack

import keras
from keras import ops

from remixer_tf.arguments import Shape
from remixer_tf.layers.attention import SelfAttention, SelfAttentionKeywords
from remixer_tf.layers.base import dense
from remixer_tf.layers.feed_forward import FeedForward
from remixer_tf.layers.keywords import SublayerKeywords


def bert_dense(name, d_in, d_out, dtype, axes, use_bias=True):
    """A projection; its kernel starts truncated normal, deviation 0.02."""
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)
    shape = (None, None, d_in)
    return dense(name, shape, d_out, dtype, initializer, axes, use_bias=use_bias)


class BertSelfAttention(SelfAttention):
    """`softmax(Q K^T / sqrt(d_kv) + bias) V W_o + b_o`, with biased projections.

    The attention of the gMLP paper's baselines (Table 3): "BERT" takes its positions
    from a `PositionEmbedding`, "BERT + rel pos" from `relative_bias`, which is then
    specific to layer and head.

    A preset of `SelfAttention`; the other arguments, call arguments, returns and
    raises: see there.
    """

    def __init__(
        self, num_heads: int, d_kv: int, **kwargs: Unpack[SelfAttentionKeywords]
    ):
        options = {"use_bias": True, "scale_query": True, "stddev": 0.02, **kwargs}
        super().__init__(num_heads, d_kv, **options)


class PositionalAttention(BertSelfAttention):
    """`softmax(B) V W_o + b_o`: attention that looks at positions and at no content.

    B is the layer's own relative position bias. The gMLP paper's "BERT + rel pos -
    attn" (Table 3), that is Random Synthesizer: value and output projections stay,
    query and key go (gMLP, Table 3).

    Args:
        num_heads, d_kv, dropout_rate, d_out, causal: see `SelfAttention`.

    Call arguments, returns and raises: see `SelfAttention`.
    """

    reorders_cache = True
    keeps = ("value",)
    lora_projections = ("value",)

    def __init__(
        self, num_heads: int, d_kv: int, **kwargs: Unpack[SelfAttentionKeywords]
    ):
        super().__init__(num_heads, d_kv, relative_bias=True, **kwargs)

    def build(self, input_shape: Shape) -> None:
        d_model = input_shape[-1]
        inner = self.num_heads * self.d_kv
        dtype = self.dtype_policy
        axes = ("d_model", "heads")
        self.value = bert_dense("value", d_model, inner, dtype, axes=axes)
        axes = axes[::-1] if self.d_out is None else ("heads", "d_ff")
        self.out = bert_dense("out", inner, self.d_out or d_model, dtype, axes=axes)
        self._build_position_bias()
        self.dropout.build()

    def _kept(self, x):
        return {"value": self._split_heads(self.value(x))}

    def _attend(self, x, kept, bias, training=False):
        logits = ops.broadcast_to(bias, (ops.shape(x)[0], *bias.shape[1:]))
        return self._read(logits, kept["value"], training)


class BertFeedForward(FeedForward):
    """`Y = act(X W_i + b_i) W_o + b_o`, BERT's feed-forward layer.

    Args, call arguments and returns: see `FeedForward`.
    """

    def __init__(
        self,
        d_ff: int,
        activation: str = "gelu_exact",
        dropout_rate: float = 0.0,
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(d_ff, activation, dropout_rate, **kwargs)

    def _projection(self, name, d_in, d_out, dtype, axes):
        return bert_dense(name, d_in, d_out, dtype, axes=axes)
