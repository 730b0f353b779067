"""gMLP's block: a channel MLP whose hidden units are gated by other tokens."""

from typing import Annotated, Any, Unpack

import keras
from keras import ops

from remixer_tf.arguments import (
    Cache,
    Factory,
    NonNegativeFloat,
    Number,
    PositiveInt,
    Shape,
    Tensor,
    checked,
    one_of,
)
from remixer_tf.errors import UserError
from remixer_tf.kernels.project import project
from remixer_tf.layers.axes import is_shared, share
from remixer_tf.layers.base import (
    Context,
    DecodeState,
    Sublayer,
    get_activation,
    read_prompt,
    require_max_length,
    take_step,
    wide,
)
from remixer_tf.layers.bert import BertSelfAttention, bert_dense
from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.length_mixing import LengthMixing
from remixer_tf.layers.normalization import LayerNorm
from remixer_tf.layers.saving import configuration_of

# Each variant's initial deviation of W (None: 1 / sqrt(max_length), which keeps the
# variance) and its initial b. Where f multiplies, W near 0 and b = 1 start the layer
# as the identity (gMLP, after Equation 2). Where f is added, b = 0 does. The linear
# variant would start as a constant, so that its W is larger.
VARIANTS = {
    "split": (1e-6, 1.0),
    "multiplicative": (1e-6, 1.0),
    "additive": (1e-6, 0.0),
    "linear": (None, 0.0),
}


class GateKeywords(SublayerKeywords, total=False):
    """Keywords that all spatial gates share, see `SpatialGatingUnit`."""

    toeplitz: bool
    spatial_stddev: float | None
    spatial_bias_value: float | None
    norm_epsilon: float


class SpatialGatingUnit(Sublayer):
    """Lets the other tokens gate the channels of each (gMLP, Equation 2).

    `f(A) = W LayerNorm(A) + b`. W mixes positions and is shared by all channels; b has
    one number per position. With several heads, each group of consecutive channels has
    a W and a b (Yu et al. 2022, "Efficient Language Modeling with Sparse all-MLP",
    whose dense gMLPs have 1 and 16). The variants (gMLP, Table 3) are

    - split: `Z_1 * f(Z_2)`, Z_1 and Z_2 the halves of Z's channels: the paper's unit;
    - multiplicative: `Z * f(Z)`;
    - additive: `Z + f(Z)`;
    - linear: `f(Z)`.

    Args:
        variant: str, one of those above.
        toeplitz: bool, W is a Toeplitz matrix (gMLP, appendix).
        spatial_stddev: float, W starts truncated normal of this deviation. None: 1e-6,
            or `max_length ** -0.5` in the linear variant.
        spatial_bias_value: float, b starts at it. None: 1 where f multiplies, else 0.
        num_mixing_heads: int, equal groups of channels, after the split.
        norm_epsilon: float, see `LayerNorm`.
        max_length: int, W is `max_length x max_length`, see `Sublayer`.
        causal: bool, W sees no later token, see `Sublayer`.

    Call arguments:
        z: float `[batch, length, channels]`; for "split" also a tuple of the halves.
        context: a `Context`.
        added: float, of the shape of f, added to it; None for nothing.

    Returns:
        float `[batch, length, channels]`, or half the channels for "split".

    Raises:
        ValueError: for an unknown variant, an odd number of channels to split, and as
            `LengthMixing` does.
    """

    causal = None
    reorders_cache = False
    rows_apart = True

    @checked
    def __init__(
        self,
        variant: Annotated[str, one_of(VARIANTS)] = "split",
        toeplitz: bool = False,
        spatial_stddev: NonNegativeFloat | None = None,
        spatial_bias_value: Number | None = None,
        num_mixing_heads: int = 1,
        norm_epsilon: float = 1e-6,
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.variant = variant
        stddev, bias = VARIANTS[variant]
        if spatial_stddev is not None:
            stddev = spatial_stddev
        if spatial_bias_value is not None:
            bias = spatial_bias_value
        self.norm = LayerNorm(norm_epsilon, name="norm", dtype=self.dtype_policy)
        self.mixing = self.make_mixing(
            num_mixing_heads=num_mixing_heads,
            toeplitz=toeplitz,
            use_bias=True,
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=stddev),
            bias_initializer=keras.initializers.Constant(bias),
            causal=self.causal,
            max_length=self.max_length,
            name="mixing",
            dtype=self.dtype_policy,
        )

    def make_mixing(self, **options: Any) -> Sublayer:
        """Returns the layer that computes `W LayerNorm(A) + b`, of these options."""
        return LengthMixing(**options)

    def build(self, input_shape: Shape) -> None:
        channels = input_shape[-1]
        if self.variant == "split":
            if channels % 2:
                raise UserError(
                    "The split variant halves the channels, so their number is even. "
                    f"Received: {channels} channels in layer '{self.path}'"
                )
            channels //= 2
        self.stack_facts.tell(self.mixing)
        if self.mixing.kernel_initializer.stddev is None:
            require_max_length(self)
            self.mixing.kernel_initializer.stddev = self.max_length**-0.5
        self.norm.build((None, None, channels))
        self.mixing.build((None, None, channels))

    def call(self, z: Tensor, context: Context, added: Tensor | None = None) -> Tensor:
        z_1, z_2 = self._parts(z)
        f = self._mix(self.norm(z_2), context)  # W LayerNorm(Z_2) + b
        return self._gate(z_1, f, added)

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        """The cache holds the normalised channels that W mixes."""
        return self.mixing.init_cache(batch_size, max_length, context)

    def decode_step(
        self,
        z: Tensor,
        cache: Cache,
        context: Context,
        state: DecodeState,
        added: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """See `Sublayer`: z is `[batch, 1, channels]`; `added` as in `call`."""
        z_1, z_2 = self._parts(z)
        f, cache = self.mixing.decode_step(self.norm(z_2), cache, context, state)
        return self._gate(z_1, f, added), cache

    def prefill(
        self,
        z: Tensor,
        cache: Cache,
        context: Context,
        state: DecodeState,
        added: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """See `Sublayer`: z is `[batch, width, channels]`; `added` as in `call`."""
        z_1, z_2 = self._parts(z)
        f, cache = read_prompt(self.mixing, self.norm(z_2), cache, context, state)
        return self._gate(z_1, f, added), cache

    def _parts(self, z):
        """Z_1, the gated half, and Z_2, the input of f."""
        if isinstance(z, tuple):
            return z
        if self.variant != "split":
            return z, z
        return ops.split(z, 2, axis=-1)  # Its gradient is quicker than that of slices.

    def _mix(self, x, context):
        return self.mixing(x, context=context)

    def _gate(self, z, f, added):
        if added is not None:
            f += added
        if self.variant == "linear":
            return f
        return z + f if self.variant == "additive" else z * f


class TinyAttention(BertSelfAttention):
    """aMLP's single attention head, added to the spatial gate (gMLP, Figure 6).

    `softmax(Q K^T / sqrt(d_kv)) V W_o + b_o`, from d_model to d_out channels, a preset
    of `SelfAttention`. W_o starts at zero, so that the gate starts as without it (our
    choice). The position bias of a stack is for other layers.

    Args:
        d_out: int, channels of the output.
        d_kv: int, width of the head; 64 or 128 in the paper.

    Other arguments, call arguments and returns: see `SelfAttention`.
    """

    def __init__(self, d_out: int, d_kv: int, **kwargs: Any):
        options = {"d_out": d_out, "zero_out": True, "stack_bias": False, **kwargs}
        super().__init__(1, d_kv, **options)


class GatedMLP(Sublayer):
    """gMLP's block (gMLP, Equation 1): `Y = s(act(X U + b_U)) V + b_V`.

    s is the gate; norm of X and residual are the `Block`'s. With an attention (aMLP),
    its output from X is added to what gates:
    `Z_1 * (W LayerNorm(Z_2) + b + attention(X))` (gMLP, Figure 6). sMLP's spatial
    experts are this block with a `SparseSpatialGate`.

    Args:
        d_ff: int, channels of `X U`. V has half as many rows if the gate splits them.
        gate: a factory that takes `name` and `dtype` and returns a
            `SpatialGatingUnit`.
        attention: a factory that takes `d_out`, `name` and `dtype` and returns a layer
            such as `TinyAttention`; None for none.
        activation: str, see `get_activation`; the paper's BERT protocol has the exact
            gelu.

    Other arguments, call arguments and returns: see `Sublayer`; errors: see the gate.
    """

    causal = None
    reorders_cache = False
    rows_apart = True
    lora_projections = ("wi", "wo")

    @checked
    def __init__(
        self,
        d_ff: PositiveInt,
        gate: Factory = SpatialGatingUnit,
        attention: Factory | None = None,
        activation: str = "gelu_exact",
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.d_ff = d_ff
        self.act = get_activation(activation)
        dtype = self.dtype_policy
        self.gating = gate(name="gating", dtype=dtype)
        self.stack_facts.tell(self.gating)
        self.d_gate = d_ff // 2 if self.gating.variant == "split" else d_ff
        self.attention = None
        if attention is not None:
            self.attention = attention(d_out=self.d_gate, name="attention", dtype=dtype)
            self.stack_facts.tell(self.attention)

    def made_parts(self):
        return {"gate": configuration_of(self.gating)}

    @property
    def first_scorable(self):
        """See `Sublayer`: the gate's."""
        return self.gating.first_scorable

    def build(self, input_shape: Shape) -> None:
        d_model = input_shape[-1]
        dtype = self.dtype_policy
        axes = ("d_model", "d_ff")
        self.wi = bert_dense("wi", d_model, self.d_ff, dtype, axes=axes)  # U
        out = wide(dtype)
        self.wo = bert_dense("wo", self.d_gate, d_model, out, axes=axes[::-1])  # V
        self.stack_facts.tell(self.gating)
        self.gating.build((None, None, self.d_ff))
        if self.attention is not None:
            self.stack_facts.tell(self.attention)
            self.attention.build(input_shape)

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        attended = None
        if self.attention is not None:
            attended = self.attention(x, context=context, training=training)
        z = self._project(x)
        return self.wo(self.gating(z, context=context, added=attended))  # s(Z) V + b_V

    def _project(self, x):
        """`act(X U + b_U)`, or its halves if devices share it and the gate splits."""
        # A device then has the same channels of both halves: columns of U move between
        # devices, and not activations.
        whole = self.gating.variant != "split" or not is_shared()
        if whole or self.wi.lora_enabled:
            return self.act(self.wi(x))
        kernel, bias = (
            share(self, "halves", ops.reshape(weight, (-1, 2, self.d_gate)))
            for weight in (self.wi.kernel, self.wi.bias)
        )
        return tuple(
            self.act(project(x, kernel[:, half]) + bias[:, half]) for half in (0, 1)
        )

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        cache = self.gating.init_cache(batch_size, max_length, context)
        if self.attention is not None:
            cache |= self.attention.init_cache(batch_size, max_length, context)
        return cache

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        return self._with_cache(take_step, x, cache, context, state)

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        return self._with_cache(read_prompt, x, cache, context, state)

    def _with_cache(self, read, x, *rest):
        attended, keys = None, {}
        if self.attention is not None:
            attended, keys = read(self.attention, x, *rest)
        z = self.act(self.wi(x))
        z, cache = read(self.gating, z, *rest, attended)
        return self.wo(z), {**cache, **keys}
