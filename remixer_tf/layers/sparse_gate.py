"""sMLP's spatial experts: each channel is gated by one of several spatial layers.

Source: Yu et al. 2022, "Efficient Language Modeling with Sparse all-MLP", section 3.2.
Neither its code nor its full text was at hand. Our own choices are marked.
"""

import math
from typing import Annotated, Unpack

import keras
from keras import ops

from remixer_tf.arguments import Cache, PositiveInt, Shape, checked, one_of
from remixer_tf.errors import UserError
from remixer_tf.kernels.take_rows import take_rows
from remixer_tf.layers.assignment import assign_balanced
from remixer_tf.layers.base import (
    Context,
    require_max_length,
    require_unpacked,
    softmax,
)
from remixer_tf.layers.gmlp import GateKeywords, SpatialGatingUnit
from remixer_tf.layers.sowing import sow

# The share of a row that decides in partial routing; the rest is predicted.
DECIDING_SHARE = 0.2
# The share of the positions that decide where a channel goes.
ROUTINGS = {"deterministic": 0.0, "partial": DECIDING_SHARE, "naive": 1.0}


def count_first(length, share=DECIDING_SHARE):
    """How many positions the first `share` of `length` positions are, rounded up."""
    # Less than a millionth of a position is rounding: 0.55 * 100 > 55.
    return math.ceil(share * length - 1e-6)


class SparseSpatialGate(SpatialGatingUnit):
    """`Z_1 * f(Z_2)`, where each channel of Z_2 goes to one of N spatial experts.

    `f_e(C) = W_e LayerNorm(C) + b_e`, with a W and a b for each expert e. All experts
    take equally many channels. The work is that of one gate, whatever N is. Routings:

    - deterministic (section 3.2.1): the first channels to the first expert, and so on:
      a `SpatialGatingUnit` with N heads. Causal if W is.
    - partial (section 3.2.2): each example routes its channels by V, the first fifth
      of `max_length` positions of the normalised Z_2. `S = V W_r` scores the experts,
      and the channels are assigned in balance. The positions in V see each other, so
      only later ones have a loss: see `Sublayer.first_scorable`.
    - naive: all positions decide. It leaks the future, and is here for the test that
      shows the leak.

    W_r learns since f of a routed channel is multiplied by `N softmax(S)` of its
    expert. The balance is ours, and so is N: the gate starts as without a router.

    Args:
        num_experts: int, N; it divides the channels of Z_2.
        routing: str, one of those above.
        toeplitz, spatial_stddev, spatial_bias_value, norm_epsilon, max_length, causal:
            see `SpatialGatingUnit`.

    Call arguments and returns: see `SpatialGatingUnit`, with the variant "split".

    Raises:
        ValueError: for an unknown routing, or experts that do not divide the channels.
            Routings other than deterministic also refuse packed examples, and decoding
            step by step: a step has not read all positions that decide.
    """

    @checked
    def __init__(
        self,
        num_experts: PositiveInt,
        routing: Annotated[str, one_of(ROUTINGS)] = "deterministic",
        **kwargs: Unpack[GateKeywords],
    ):
        for name in {"variant", "num_mixing_heads"} & set(kwargs):
            raise UserError(
                f"SparseSpatialGate has no {name}: it splits the channels, and the "
                f"experts share them. Received: {name}={kwargs[name]!r}. Set "
                "num_experts, or take a SpatialGatingUnit."
            )
        super().__init__(num_mixing_heads=num_experts, **kwargs)
        self.num_experts = num_experts
        self.routing = routing

    @property
    def first_scorable(self):
        """See `Sublayer`: the positions that route the channels see each other."""
        return self.num_deciding

    @property
    def num_deciding(self):
        """How many positions route the channels."""
        require_max_length(self)
        return count_first(self.max_length, ROUTINGS[self.routing])

    def build(self, input_shape: Shape) -> None:
        width = input_shape[-1] // 2
        if width % self.num_experts:
            raise UserError(
                "Spatial experts share the channels equally, so num_experts has to "
                f"divide half of d_ff. Received: num_experts={self.num_experts}, "
                f"d_ff={input_shape[-1]}"
            )
        super().build(input_shape)
        if self.num_deciding:
            self.router = self.add_weight(
                name="router",
                shape=(self.num_deciding, self.num_experts),
                axes=(None, None),
                initializer=keras.initializers.TruncatedNormal(stddev=0.02),
                autocast=False,
            )

    def init_cache(self, batch_size: int, max_length: int, context: Context) -> Cache:
        if self.num_deciding:
            raise UserError(
                f'Spatial experts with routing="{self.routing}" cannot decode step by '
                f"step: the first {self.num_deciding} positions decide where channels "
                f"go, all at once. Received: layer '{self.path}'. Decode with "
                'routing="deterministic".'
            )
        return super().init_cache(batch_size, max_length, context)

    def _mix(self, x, context):
        if not self.num_deciding:
            return super()._mix(x, context)
        why = f'routing="{self.routing}" routes the channels of a whole row'
        require_unpacked(self, context, why)
        channels = ops.transpose(x, (0, 2, 1))
        experts, probability = self._route(channels, context)
        # Each channel is a row, so that what moves lies together, and comes to its
        # expert in the order that the product wants.
        order, back = _order_by_expert(experts, self.num_experts)
        rows = ops.reshape(channels, (-1, x.shape[1]))
        rows = take_rows(rows, order, back[:, None])
        per_expert = x.shape[2] // self.num_experts
        shape = (self.num_experts, -1, per_expert, x.shape[1])
        mixed = self.mixing.mix(ops.reshape(rows, shape), context)
        mixed = take_rows(ops.reshape(mixed, (-1, x.shape[1])), back, order[:, None])
        mixed = ops.reshape(mixed, ops.shape(channels))
        mixed *= ops.cast(self.num_experts * probability, mixed.dtype)[:, :, None]
        return ops.transpose(mixed, (0, 2, 1))

    def _route(self, channels, context):
        """The experts of channels, and their probabilities: `[batch, channels]`."""
        x = ops.cast(channels[:, :, : self.num_deciding], "float32")
        mask = context.token_mask
        if mask is None:
            mask = context.padding_mask
        if mask is not None:
            x *= ops.cast(mask[:, None, : self.num_deciding], "float32")
        router = ops.convert_to_tensor(self.router)[: x.shape[2]]
        logits = ops.matmul(x, router)
        probabilities = softmax(logits)
        everyone = ops.ones_like(logits[..., 0], dtype="int32")
        experts = assign_balanced(ops.stop_gradient(logits), everyone)
        taken = ops.one_hot(experts, self.num_experts, dtype="float32")
        probability = ops.sum(probabilities * taken, axis=-1)

        def agreement():
            agrees = ops.equal(experts, ops.argmax(logits, axis=-1))
            return ops.mean(ops.cast(agrees, "float32"))

        sow(self, "statistics", "agreement", agreement)
        sow(self, "statistics", "gate", lambda: ops.mean(probability))
        return experts, probability


def _order_by_expert(experts, num_experts):
    """The order of the channels `[num_experts, batch, channels of an expert]`.

    `experts`, int32 `[batch, channels]`, has each of them as often in every row.
    Returns two int32 `[batch * channels]`: the channel in each place of that order,
    counted through the batch, and the place of each channel.
    """
    batch, channels = ops.shape(experts)
    per_expert = channels // num_experts
    row = ops.arange(batch, dtype="int32")[:, None]
    order = ops.cast(ops.argsort(experts, axis=1), "int32")
    rank = ops.cast(ops.argsort(order, axis=1), "int32")
    back = (rank // per_expert * batch + row) * per_expert + rank % per_expert
    order = ops.reshape(row * channels + order, (batch, num_experts, per_expert))
    order = ops.transpose(order, (1, 0, 2))
    return ops.reshape(order, (-1,)), ops.reshape(back, (-1,))
