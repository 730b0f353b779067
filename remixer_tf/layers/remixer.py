"""The Remixer block: static mixing composed with its own input."""

import numbers
from typing import Annotated, Unpack

from keras import ops

from remixer_tf.arguments import Cache, PositiveInt, Shape, Tensor, checked, one_of
from remixer_tf.errors import UserError
from remixer_tf.layers.base import (
    Context,
    DecodeState,
    Sublayer,
    dense,
    get_activation,
    read_prompt,
    wide,
)
from remixer_tf.layers.dropout import Dropout
from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.length_mixing import LengthMixing
from remixer_tf.layers.sowing import sow


def _weighted(alpha, x, x_s):
    """`alpha (X_S * X') + (1 - alpha) (X' - X_S)`: the paper's step 3."""
    return alpha * (x_s * x) + (1 - alpha) * (x - x_s)


# name: (X', X_S, alpha, gate) -> X_C. Each is a row of an ablation.
COMPOSITIONS = {
    "full": lambda x, x_s, alpha, gate: _weighted(alpha, x, x_s),
    "none": lambda x, x_s, alpha, gate: x_s,
    "multiplicative": lambda x, x_s, alpha, gate: x_s * x,
    "subtractive": lambda x, x_s, alpha, gate: x - x_s,
    "gate": lambda x, x_s, alpha, gate: (
        gate * _weighted(alpha, x, x_s) + (1 - gate) * x_s
    ),
}
ALPHAS = ("learned_scalar", "learned_vector", "gated")
RESIDUALS = ("output", "hidden")


class RemixerBlock(Sublayer):
    """Remixer's token and channel mixing ("Remixers", section 2.1).

    1. `X' = GELU(X W_1) * (X W_2)`
    2. `X_S = softmax(H) X'`
    3. `X_C = alpha (X_S * X') + (1 - alpha) (X' - X_S)`
    4. `Y = X_C W_3 + X'`

    Args:
        d_ff: int, channels of X'; None is d_model. W_1, W_2: d_model x d_ff, W_3:
            d_ff x d_model.
        residual: str, where step 4 adds X'. "output", as printed, adds it to Y, which
            needs d_ff = d_model. "hidden" is our reading for another d_ff:
            `Y = (X_C + X') W_3`.
        num_mixing_heads: int, matrices H over equal groups of channels.
        alpha: float in [0, 1], or "learned_scalar" or "learned_vector" (sigmoid of a
            weight that starts at 0), or "gated": `alpha = sigmoid(X' W_g + b_g)`.
        composition: X_C of step 3. "full"; "none", ablation 1, `X_C = X_S`;
            "multiplicative", `X_S * X'`; "subtractive", `X' - X_S`; "gate", the other
            reading of ablation 2, `g X_C + (1 - g) X_S` with
            `g = sigmoid(X' W_g + b_g)` and X_C from alpha.
        activation: str, see `get_activation`.
        toeplitz: bool, see `LengthMixing`.
        dropout_rate: float, on what W_3 multiplies, one mask for all positions, as in
            T5's feed-forward layers.
        mixing_dropout_rate: float, on softmax(H); the paper tries up to 0.2.
        max_length: int, H is `max_length x max_length`, see `Sublayer`.
        causal: bool, H sees no later token (mask before the softmax), see `Sublayer`.

    Call arguments and returns: see `Sublayer`.

    Raises:
        ValueError: for an alpha outside [0, 1], an unknown alpha, composition or
            residual, residual="output" with another d_ff than d_model, and as
            `LengthMixing` does.
    """

    causal = None
    reorders_cache = False
    rows_apart = True
    lora_projections = ("wi_0", "wi_1", "wo")

    @checked
    def __init__(
        self,
        d_ff: PositiveInt | None = None,
        num_mixing_heads: PositiveInt = 1,
        alpha: float | str = 0.5,
        composition: Annotated[str, one_of(COMPOSITIONS)] = "full",
        activation: str = "gelu",
        toeplitz: bool = False,
        residual: Annotated[str, one_of(RESIDUALS)] = "output",
        dropout_rate: float = 0.0,
        mixing_dropout_rate: float = 0.0,
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        constant = isinstance(alpha, numbers.Real)
        named = isinstance(alpha, str) and alpha in ALPHAS
        if not (0 <= alpha <= 1 if constant else named):
            raise UserError(
                f"alpha is a number in [0, 1] or one of {sorted(ALPHAS)}. "
                f"Received: alpha={alpha!r}"
            )
        uses_alpha = composition in ("full", "gate")
        if not uses_alpha and not (constant and alpha == 0.5):
            raise UserError(
                f"composition={composition!r} has no alpha, so leave alpha at its "
                f"default. Received: alpha={alpha!r}"
            )
        self.d_ff = d_ff
        self.alpha = alpha
        self.composition = composition
        self.residual = residual
        self.compose = COMPOSITIONS[composition]
        self.act = get_activation(activation)
        self.mixing = LengthMixing(
            num_mixing_heads=num_mixing_heads,
            toeplitz=toeplitz,
            softmax=True,
            dropout_rate=mixing_dropout_rate,
            causal=self.causal,
            max_length=self.max_length,
            name="mixing",
            dtype=self.dtype_policy,
        )
        out = wide(self.dtype_policy)
        self.dropout = Dropout(
            dropout_rate, shared_axes=(1,), name="dropout", dtype=out
        )

    def build(self, input_shape: Shape) -> None:
        d_model, dtype = input_shape[-1], self.dtype_policy
        d_ff = self.d_ff or d_model
        if self.residual == "output" and d_ff != d_model:
            raise UserError(
                'residual="output" adds X\' to Y, so d_ff equals d_model. Received: '
                f"d_ff={d_ff}, d_model={d_model} in layer '{self.path}'. Set "
                'residual="hidden" (in gin: RemixerBlock.residual = "hidden"), which '
                "is Y = (X_C + X') W_3."
            )
        hidden_shape = (None, None, d_ff)
        axes = ("d_model", "d_ff")
        self.wi_0 = dense("wi_0", input_shape, d_ff, dtype, axes=axes)  # W_1
        self.wi_1 = dense("wi_1", input_shape, d_ff, dtype, axes=axes)  # W_2
        into = hidden_shape, d_model, wide(dtype)
        self.wo = dense("wo", *into, axes=axes[::-1])  # W_3
        self.stack_facts.tell(self.mixing)
        self.mixing.build(hidden_shape)
        self.dropout.build()
        if self.alpha in ("learned_scalar", "learned_vector"):
            is_scalar = self.alpha == "learned_scalar"
            self.alpha_logit = self.add_weight(
                name="alpha_logit",
                shape=() if is_scalar else (d_ff,),
                axes=() if is_scalar else ("d_ff",),
                initializer="zeros",
                autocast=False,
            )
        if self.alpha == "gated":
            self.alpha_gate = self._gate("alpha_gate", hidden_shape)
        if self.composition == "gate":
            self.gate = self._gate("gate", hidden_shape)

    @property
    def wide_inputs(self):
        """See `Sublayer`: X_C + X', where X_C multiplies X_S and X'."""
        return () if self.composition in ("none", "subtractive") else ("wo",)

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        x_prime = self.act(self.wi_0(x)) * self.wi_1(x)  # GELU(X W_1) * (X W_2)
        x_s = self.mixing(x_prime, context=context, training=training)  # softmax(H) X'
        return self._output(x_prime, x_s, training)

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        return self.mixing.init_cache(batch_size, max_length, context)

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        x_prime = self.act(self.wi_0(x)) * self.wi_1(x)
        x_s, cache = self.mixing.decode_step(x_prime, cache, context, state)
        return self._output(x_prime, x_s), cache

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        x_prime = self.act(self.wi_0(x)) * self.wi_1(x)
        x_s, cache = read_prompt(self.mixing, x_prime, cache, context, state)
        return self._output(x_prime, x_s), cache

    def _output(self, x_prime, x_s, training=False):
        """`Y = X_C W_3 + X'`, or `(X_C + X') W_3`."""
        gate = self.gate(x_prime) if self.composition == "gate" else None
        alpha = self._alpha(x_prime)
        sow(self, "intermediates", "alpha", alpha)
        dtype = wide(self.dtype_policy).compute_dtype  # X_S * X' may exceed float16.
        x_prime, x_s, alpha = (ops.cast(a, dtype) for a in (x_prime, x_s, alpha))
        gate = None if gate is None else ops.cast(gate, dtype)
        x_c = self.compose(x_prime, x_s, alpha, gate)
        if self.residual == "hidden":
            x_c += x_prime
        y = self.wo(self.dropout(x_c, training=training))
        return y + x_prime if self.residual == "output" else y

    def _alpha(self, x_prime):
        if self.alpha == "gated":
            return self.alpha_gate(x_prime)
        if self.alpha in ("learned_scalar", "learned_vector"):
            return ops.cast(ops.sigmoid(self.alpha_logit), x_prime.dtype)
        return self.alpha

    def _gate(self, name, shape):
        """`sigmoid(X' W_g + b_g)`, `[d_ff, d_ff]` and `[d_ff]`."""
        options = {"use_bias": True, "activation": "sigmoid", "axes": (None, "d_ff")}
        return dense(name, shape, shape[-1], self.dtype_policy, **options)
