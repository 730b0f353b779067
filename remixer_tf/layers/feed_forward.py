"""Position-wise feed-forward sublayers."""

from typing import Unpack

from remixer_tf.arguments import PositiveInt, Shape, Tensor, checked
from remixer_tf.layers.base import Context, PositionWise, dense, get_activation, wide
from remixer_tf.layers.dropout import Dropout
from remixer_tf.layers.keywords import SublayerKeywords


class FeedForward(PositionWise):
    """`Y = act(X W_i) W_o`, no biases: T5.1.0's feed-forward layer with `relu`.

    Under float16 W_o and Y are float32, see `wide`.

    Args:
        d_ff: int, hidden width.
        activation: str, see `get_activation`.
        dropout_rate: float, on the hidden units, one mask for all positions.

    Call arguments and returns: see `Sublayer`.
    """

    @checked
    def __init__(
        self,
        d_ff: PositiveInt,
        activation: str = "relu",
        dropout_rate: float = 0.0,
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.d_ff = d_ff
        self.activation = activation
        self.dropout_rate = dropout_rate
        self.act = get_activation(activation)
        self.dropout = Dropout(
            dropout_rate, shared_axes=(1,), name="dropout", dtype=self.dtype_policy
        )

    def build(self, input_shape: Shape) -> None:
        d_model = input_shape[-1]
        self.wi = self._dense("wi", d_model, self.d_ff, ("d_model", "d_ff"))
        self.wo = self._dense("wo", self.d_ff, d_model, ("d_ff", "d_model"))
        self.dropout.build()

    def _dense(self, name, d_in, d_out, axes):
        dtype = wide(self.dtype_policy) if name == "wo" else self.dtype_policy
        return self._projection(name, d_in, d_out, dtype, axes)

    def _projection(self, name, d_in, d_out, dtype, axes):
        return dense(name, (None, None, d_in), d_out, dtype, axes=axes)

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        return self.wo(self.dropout(self.act(self.wi(x)), training=training))


class GatedFeedForward(FeedForward):
    """`Y = (act(X W_0) * X W_1) W_o`: T5.1.1's GEGLU with `gelu`.

    Source: Shazeer 2020, "GLU Variants Improve Transformer", Equation 6.

    Args, call arguments and returns: see `FeedForward`.
    """

    def __init__(
        self,
        d_ff: int,
        activation: str = "gelu",
        dropout_rate: float = 0.0,
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(d_ff, activation, dropout_rate, **kwargs)

    def build(self, input_shape: Shape) -> None:
        d_model = input_shape[-1]
        self.wi_0 = self._dense("wi_0", d_model, self.d_ff, ("d_model", "d_ff"))
        self.wi_1 = self._dense("wi_1", d_model, self.d_ff, ("d_model", "d_ff"))
        self.wo = self._dense("wo", self.d_ff, d_model, ("d_ff", "d_model"))
        self.dropout.build()

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        hidden = self.act(self.wi_0(x)) * self.wi_1(x)
        return self.wo(self.dropout(hidden, training=training))
