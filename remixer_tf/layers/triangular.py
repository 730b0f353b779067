"""TriMLP's triangular mixer."""

from typing import Any, Unpack

from keras import ops

from remixer_tf.arguments import Cache, PositiveInt, Shape, Tensor, checked
from remixer_tf.errors import UserError
from remixer_tf.layers.base import (
    MASKED,
    Context,
    DecodeState,
    Sublayer,
    get_activation,
    read_prompt,
    softmax,
    take_step,
)
from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.length_mixing import MadeMatrix


class SessionMixing(MadeMatrix):
    """`LengthMixing` whose tokens see earlier ones of their session alone.

    `M[t, s]` is the softmax of G[s] over the targets t from s to the end of its
    session: what a source gives sums to 1.

    Args:
        session: int, its tokens, which divide `max_length`; None: one session is all.
            Others: see `LengthMixing`.
    """

    causal = True

    def __init__(self, session: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.session = session

    def _build_matrix(self):
        n = self.max_length
        self.kernel = self.add_weight(
            name="kernel",
            shape=(1, n, n),  # [1, source, target]
            axes=(None, None, None),
            initializer="ones",
            autocast=False,
        )

    def make_matrix(self):
        places = ops.arange(self.max_length)
        number = places // (self.session or self.max_length)
        seen = ops.logical_and(
            places[:, None] <= places, ops.equal(number[:, None], number)
        )
        weights = ops.where(seen, ops.convert_to_tensor(self.kernel), MASKED)
        return ops.transpose(softmax(weights), (0, 2, 1))


class TriangularMixing(Sublayer):
    """`Y = act(L act(G X))`: mixing of all earlier tokens, then of a session's.

    TriMLP's mixer (Jiang et al. 2023, "TriMLP", arXiv 2305.14675, section 4.2). G and L
    are triangular; L has blocks of a session's tokens. Their weights start equal and
    pass a softmax over targets. The softmax is of `max_length` targets, so that a token
    does not depend on how many follow.

    Args:
        session: int, tokens of a session, which divide `max_length`.
        activation: str, see `get_activation`.
        max_length: int, the longest sequence, see `Sublayer`.

    Call arguments, returns and errors: see `LengthMixing`. A session that does not
    divide `max_length` is a ValueError.
    """

    causal = True
    reorders_cache = False
    rows_apart = True

    @checked
    def __init__(
        self,
        session: PositiveInt,
        activation: str = "sigmoid",
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.session = session
        self.act = get_activation(activation)
        options = {"max_length": self.max_length, "dtype": self.dtype_policy}
        self.mixings = [
            SessionMixing(name="global", **options),
            SessionMixing(session, name="local", **options),
        ]

    def build(self, input_shape: Shape) -> None:
        if self.max_length is not None and self.max_length % self.session:
            raise UserError(
                "Sessions of equal length make up max_length. Received: "
                f"max_length={self.max_length}, session={self.session}"
            )
        for mixing in self.mixings:
            self.stack_facts.tell(mixing)
            mixing.build(input_shape)

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        for mixing in self.mixings:
            x = self.act(mixing(x, context=context))
        return x

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        shape = (batch_size, max_length, context)
        return {mixing.name: mixing.init_cache(*shape) for mixing in self.mixings}

    def decode_step(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        return self._with_cache(take_step, x, cache, context, state)

    def prefill(
        self, x: Tensor, cache: Cache, context: Context, state: DecodeState
    ) -> tuple[Tensor, Cache]:
        return self._with_cache(read_prompt, x, cache, context, state)

    def _with_cache(self, read, x, cache, context, state):
        new = {}
        for mixing in self.mixings:
            y, new[mixing.name] = read(mixing, x, cache[mixing.name], context, state)
            x = self.act(y)
        return x, new
