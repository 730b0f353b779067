"""A mixture of experts: feed-forward layers of which each token uses a few."""

import functools
from typing import Unpack

import keras
import numpy as np
from keras import ops

from remixer_tf.arguments import Factory, PositiveInt, Shape, Tensor, checked
from remixer_tf.errors import UserError
from remixer_tf.layers.axes import is_shared, share
from remixer_tf.layers.base import (
    Context,
    PositionWise,
    Sublayer,
    get_activation,
    wide,
)
from remixer_tf.layers.dispatch import exchange, gather, make_plan, multiply_blocks
from remixer_tf.layers.dropout import Dropout
from remixer_tf.layers.keywords import SublayerKeywords
from remixer_tf.layers.learned_routers import SwitchRouter
from remixer_tf.layers.routers import Routing
from remixer_tf.layers.sowing import sow


class MoE(PositionWise):
    """`y = sum_i g_i f_{e_i}(x)`: each token by the experts that its router chooses.

    Each expert is a feed-forward layer without biases, `act(x W_i) W_o`, or if gated
    `(act(x W_0) * x W_1) W_o` (Shazeer et al. 2017, Equation 1).

    Training: tokens form equal groups (Lepikhin et al. 2020, section 3.2) of at most
    `group_size`, as few as possible. A group has whole rows; a longer row is cut into
    equal parts. An expert computes a limited number of a group's choices (see
    `Router`), and the others are dropped. A token whose choices are all dropped has the
    output 0: the residual connection alone carries it.

    On a mesh each device has whole groups, or none if groups are too few. Tokens go to
    the devices of their experts and come back (GShard, section 3.3). These are two
    all-to-alls, and two more for the gradient, see `dispatch.exchange`.

    Evaluation and decoding: nothing is dropped, so a row's output depends on no other
    row (our choice; Mesh TensorFlow drops at capacity 2).

    Padding is not computed: its output is 0, and it takes no capacity. Whether a layer
    is causal is the router's: see there.

    Sows these statistics of real tokens:

    - "load" `[num_experts]`: each expert's share of the choices, before drops;
    - "unused": the number of experts without a choice;
    - "dropped": the share of choices that are dropped; with two choices also
      "dropped_second", the share of second choices that are;
    - "gate": the mean gate;
    - "entropy", of the router's softmax, in nats, and "largest_logit": only of routers
      with logits.

    Args:
        num_experts: int.
        d_ff: int, hidden width of an expert.
        router: a factory that takes `num_experts`, `name` and returns a `Router`.
        activation: str, see `get_activation`.
        gated: bool.
        group_size: int, tokens of a group at most.
        dropout_rate: float, on the hidden units. Not shared by positions, as in
            `FeedForward`: an expert's rows are of many examples.

    Call arguments and returns: see `Sublayer`. Reads the context's `token_mask`, and
    `tokens` if the router does.

    Raises:
        ValueError: a router that is not causal in a decoder; a router that reads tokens
            where there are none.
    """

    @checked
    def __init__(
        self,
        num_experts: PositiveInt,
        d_ff: PositiveInt,
        router: Factory = SwitchRouter,
        activation: str = "relu",
        gated: bool = False,
        group_size: PositiveInt = 1024,
        dropout_rate: float = 0.0,
        **kwargs: Unpack[SublayerKeywords],
    ):
        super().__init__(**kwargs)
        self.num_experts = num_experts
        self.d_ff = d_ff
        self.activation = activation
        self.gated = gated
        self.group_size = group_size
        self.dropout_rate = dropout_rate
        self.act = get_activation(activation)
        self.router = router(num_experts=num_experts, name="router")
        self.causal = self.router.causal
        self.dropout = Dropout(dropout_rate, name="dropout", dtype=self.dtype_policy)

    @property
    def causal_in_training(self):
        """See `Sublayer`: the router's."""
        return self.router.causal_in_training

    _check_input = Sublayer._check_input  # Groups are made of rows of tokens.

    def not_causal(self):
        return (
            f"{type(self.router).__name__} lets a token's output depend on later "
            "tokens, which a decoder's layers do not see. Take another router."
        )

    def build(self, input_shape: Shape) -> None:
        d_model = input_shape[-1]
        names = ("wi_0", "wi_1") if self.gated else ("wi",)
        into, out = (d_model, self.d_ff), (self.d_ff, d_model)
        axes = ("d_model", "d_ff")
        self.wi = [self._add_experts(name, into, axes) for name in names]
        self.wo = self._add_experts("wo", out, axes[::-1])
        self.router.build(input_shape)
        self.dropout.build()

    def _add_experts(self, name, shape, axes):
        # As T5's: truncated normal of variance 1 / fan-in. Keras' own takes the experts
        # for a part of the fan. 0.87962566 is the deviation of a standard normal that
        # is cut at 2.
        stddev = shape[0] ** -0.5 / 0.87962566
        return self.add_weight(
            name=name,
            shape=(self.num_experts, *shape),  # [num_experts, d_in, d_out]
            axes=("experts", *axes),
            initializer=keras.initializers.TruncatedNormal(stddev=stddev),
            autocast=False,  # No copy of all of them.
        )

    def int8_axes(self) -> dict[str, int]:
        return {"wi": -2, "wo": -2}

    def call(self, x: Tensor, context: Context, training: bool = False) -> Tensor:
        if self.router.needs_tokens and context.tokens is None:
            raise UserError(
                f"{type(self.router).__name__} of '{self.path}' routes by the tokens' "
                "ids, and this model has none. Take another router."
            )
        mask = context.token_mask
        if mask is None:
            mask = ops.ones(ops.shape(x)[:2], "int32")
        shape = ops.shape(x)
        tokens = context.tokens
        if training:
            x, mask = share(self, "groups", self._group(x)), self._group(mask)
            tokens = None if tokens is None else self._group(tokens)
        routing = self.router(x, tokens=tokens, token_mask=mask, training=training)
        choices = self._choices(routing, mask)
        y, kept = self._compute(x, choices, training)
        self._sow_statistics(choices, kept, mask)
        y = ops.cast(y, wide(self.dtype_policy).compute_dtype)
        if training and isinstance(shape[0], int):
            y = ops.reshape(y, (shape[0], -1, shape[2]))[:, : shape[1]]
        return ops.reshape(y, shape)

    def _group(self, x):
        """`[batch, length, ..]` to `[groups, tokens, ..]`, rows filled up with zeros.

        The groups do not depend on a mesh.
        """
        batch, length, *rest = ops.shape(x)
        if not isinstance(batch, int):
            return x  # The number of rows is unknown: each is a group.
        parts = -(-length // self.group_size)
        tokens = -(-length // parts)
        if missing := parts * tokens - length:
            x = ops.pad(x, [[0, 0], [0, missing], *[[0, 0] for _ in rest]])
        most = min(batch, max(1, self.group_size // length))
        rows = max(n for n in range(1, most + 1) if batch % n == 0)
        return ops.reshape(x, (-1, rows * tokens, *rest))

    def _choices(self, routing, mask):
        """The routing as `[groups, k, tokens]`, with nothing chosen for padding."""
        real = ops.cast(mask, "bool")[:, :, None]
        if routing.chosen is not None:
            real = ops.logical_and(routing.chosen, real)
        chosen = ops.broadcast_to(real, ops.shape(routing.experts))
        experts, gates, chosen = (
            ops.transpose(value, (0, 2, 1))
            for value in (routing.experts, routing.gates, chosen)
        )
        return Routing(experts, gates, chosen, routing.logits)

    def _compute(self, x, choices, training):
        """The experts' gated outputs, and which choices were kept."""
        weights = [*self.wi, self.wo]
        apply = functools.partial(self._apply_experts, weights, training)
        capacity = self.router.capacity(x.shape[1]) if training else None
        if capacity is None and is_shared() and not (training and self.dropout_rate):
            return self._compute_on_mesh(x, choices, weights, training), choices.chosen
        plan = make_plan(choices, self.num_experts, capacity)
        move = exchange if capacity is not None and is_shared() else gather
        return move(x, choices, plan, self.num_experts, apply), plan.kept

    def _compute_on_mesh(self, x, choices, weights, training):
        """As `_compute`, where nothing is dropped: each device by its own experts."""

        def compute(tokens, weights, first):
            x, experts, gates, chosen = tokens
            number = weights[0].shape[0]
            own = ops.logical_and(experts >= first, experts < first + number)
            own = ops.logical_and(chosen, own)
            choices = Routing(ops.where(own, experts - first, 0), gates, own)
            plan = make_plan(choices, number, of_experts=self.num_experts)
            apply = functools.partial(self._apply_experts, weights, training)
            return gather(x, choices, plan, number, apply)

        tokens = (x, choices.experts, choices.gates, choices.chosen)
        weights = [ops.convert_to_tensor(w) for w in weights]
        mesh = keras.distribution.distribution()
        return mesh.over_experts(self.path, compute, tokens, weights)

    def _apply_experts(self, weights, training, x, block_experts):
        """x `[blocks, rows, d_model]`, by the expert of each block, see `gather`."""
        *wi, wo = weights

        def product(x, weights):
            if block_experts is not None and not training:
                return multiply_blocks(x, weights, block_experts)
            if block_experts is not None:
                experts = ops.minimum(block_experts, weights.shape[0] - 1)
                weights = ops.take(weights, experts, axis=0)
            return ops.matmul(x, ops.cast(weights, x.dtype))

        if block_experts is None:
            x = share(self, "rows_of_experts", share(self, "rows_of_groups", x))
        hidden = self.act(product(x, wi[0]))
        if self.gated:
            hidden *= product(x, wi[1])
        hidden = self.dropout(hidden, training=training)
        y = product(ops.cast(hidden, wide(self.dtype_policy).compute_dtype), wo)
        if block_experts is None:
            y = share(self, "rows_of_groups", share(self, "rows_of_experts", y))
        return y

    def _sow_statistics(self, choices, kept, mask):
        experts, gates, chosen, logits = choices

        def mean(values, of):
            of = ops.cast(of, "float32")
            return ops.sum(values * of) / ops.maximum(ops.sum(of), 1.0)

        def load():
            index = ops.where(chosen, experts, -1)  # -1 is no one
            index = ops.one_hot(index, self.num_experts, dtype="float32")
            return ops.sum(index, axis=(0, 1, 2))

        def largest_logit():
            real = ops.cast(mask, "bool")[:, :, None]
            return ops.max(ops.where(real, logits, -np.inf))

        def entropy():
            log_p = ops.log_softmax(logits)
            return mean(-ops.sum(ops.exp(log_p) * log_p, axis=-1), mask)

        dropped = 1 - ops.cast(kept, "float32")
        statistics = {
            "load": lambda: load() / ops.maximum(ops.sum(load()), 1.0),
            "unused": lambda: ops.sum(ops.cast(ops.equal(load(), 0), "float32")),
            "dropped": lambda: mean(dropped, chosen),
            "gate": lambda: mean(gates, chosen),
        }
        if self.router.k == 2:
            statistics["dropped_second"] = lambda: mean(dropped[:, 1], chosen[:, 1])
        if logits is not None:
            statistics |= {"entropy": entropy, "largest_logit": largest_logit}
        for name, value in statistics.items():
            sow(self, "statistics", name, value)
