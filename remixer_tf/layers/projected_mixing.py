"""Static mixing between two projections, as attention has them."""

from typing import Any, Unpack

from remixer_tf.arguments import Cache, PositiveInt, Shape, Tensor, checked
from remixer_tf.layers.base import Context, DecodeState, Sublayer, dense, read_prompt
from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.length_mixing import LengthMixing


class ProjectedMixing(Sublayer):
    """`Y = (M_1 X V_1 | ... | M_h X V_h) W_o`: a static matrix M for each head.

    Attention with matrices that are the same for all examples. M is a `LengthMixing`;
    a subclass makes another one in `make_mixing`.

    Args:
        num_heads: int.
        d_kv: int, width of a head.
        dropout_rate: float, on M, see `LengthMixing`.
        use_bias: bool, whether the projections have biases.
        max_length: int, the longest sequence, see `Sublayer`.
        causal: bool, see `Sublayer`.

    Call arguments, returns and errors: see `LengthMixing`.
    """

    causal = None
    reorders_cache = False
    rows_apart = True
    lora_projections = ("value", "out")

    @checked
    def __init__(
        self,
        num_heads: PositiveInt,
        d_kv: PositiveInt,
        dropout_rate: float = 0.0,
        use_bias: bool = False,
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.d_kv = d_kv
        self.use_bias = use_bias
        self.mixing = self.make_mixing(
            num_mixing_heads=num_heads,
            dropout_rate=dropout_rate,
            causal=self.causal,
            max_length=self.max_length,
            name="mixing",
            dtype=self.dtype_policy,
        )

    def make_mixing(self, **options: Any) -> LengthMixing:
        """Returns the layer that mixes, of these options and the class's own."""
        return LengthMixing(**options)

    def build(self, input_shape: Shape) -> None:
        d_model, inner = input_shape[-1], self.num_heads * self.d_kv
        options = {"dtype": self.dtype_policy, "use_bias": self.use_bias}
        shapes = (None, None, d_model), (None, None, inner)
        self.stack_facts.tell(self.mixing)
        self.value = dense(
            "value", shapes[0], inner, axes=("d_model", "heads"), **options
        )
        self.mixing.build(shapes[1])
        self.out = dense(
            "out", shapes[1], d_model, axes=("heads", "d_model"), **options
        )

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        y = self.mixing(self.value(x), context=context, training=training)
        return self.out(y)

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        return self.mixing.init_cache(batch_size, max_length, context)

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        y, cache = self.mixing.decode_step(self.value(x), cache, context, state)
        return self.out(y), cache

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        y, cache = read_prompt(self.mixing, self.value(x), cache, context, state)
        return self.out(y), cache
