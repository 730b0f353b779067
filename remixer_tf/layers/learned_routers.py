"""Routers that learn a softmax over the experts: Switch, GShard."""

from typing import Annotated, Unpack

import keras
from keras import ops

from remixer_tf.arguments import NonNegativeFloat, Shape, Tensor, checked, integer
from remixer_tf.kernels.jitter import jitter
from remixer_tf.layers.base import softmax
from remixer_tf.layers.dropout import ReplicaSeedGenerator
from remixer_tf.layers.keywords import LayerKeywords
from remixer_tf.layers.routers import Router, Routing
from remixer_tf.layers.sowing import sow


class _LearnedKeywords(LayerKeywords, total=False):
    balance_weight: float
    z_weight: float


class SwitchKeywords(_LearnedKeywords, total=False):
    """Keywords of `SwitchRouter` besides its own, see `LearnedRouter`."""

    capacity_factor: float | None


class GShardKeywords(_LearnedKeywords, total=False):
    """Keywords of `GShardRouter` besides its own, see `LearnedRouter`."""

    jitter: float


class LearnedRouter(Router):
    """A router by `softmax(x W)`; W is d_model x num_experts.

    W starts as N(0, 0.02^2): choices then depend on the token from the first step on,
    and gates start near 1 / num_experts.

    Args:
        num_experts, capacity_factor: see `Router`.
        jitter: float. In training, the router's inputs are multiplied by uniform
            numbers of [1 - jitter, 1 + jitter] (Switch, section 2.4). The experts'
            inputs are not.
        balance_weight: float, of the loss that balances the experts, sown as "balance":
            `E sum_e f_e P_e` of each group, with f_e the share of first choices before
            drops and P_e the mean of `softmax(x W)_e`, both of real tokens (Switch,
            Equations 4 to 6). 1 when balanced.
        z_weight: float, of the mean of `logsumexp(x W)^2`, sown as "router_z", which
            keeps logits small (ST-MoE, Equation 5).
    """

    @checked
    def __init__(
        self,
        num_experts: int,
        capacity_factor: float | None = 1.25,
        jitter: NonNegativeFloat = 0.0,
        balance_weight: NonNegativeFloat = 0.01,
        z_weight: NonNegativeFloat = 0.0,
        **kwargs: Unpack[LayerKeywords],
    ):
        super().__init__(num_experts, capacity_factor, **kwargs)
        self.jitter = jitter
        self.balance_weight = balance_weight
        self.z_weight = z_weight

    def build(self, input_shape: Shape) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], self.num_experts),  # [d_model, num_experts]
            axes=(None, None),
            initializer=keras.initializers.RandomNormal(stddev=0.02),
        )
        if self.draws:
            self.seed_generator = ReplicaSeedGenerator(name="seed_generator")

    @property
    def draws(self):
        """Whether random numbers are needed in training."""
        return bool(self.jitter)

    def call(
        self, x: Tensor, tokens: Tensor, token_mask: Tensor, training: bool = False
    ) -> Routing:
        if self.jitter and training:
            x *= jitter(ops.shape(x), self.jitter, self.seed_generator)
        logits = ops.matmul(x, self.kernel)  # float32 [groups, tokens, num_experts]
        probabilities = softmax(logits)
        gates, experts = ops.top_k(probabilities, self.k)
        experts = ops.cast(experts, "int32")
        if training:
            self.sow_losses(logits, probabilities, experts[..., 0], token_mask)
        return Routing(experts, gates, logits=logits)

    def sow_losses(self, logits, probabilities, first, token_mask):
        """Sows the losses; `first` is each token's first choice."""
        real = ops.cast(token_mask, "float32")
        if self.balance_weight:
            number = ops.maximum(ops.sum(real, axis=1, keepdims=True), 1.0)
            mean = real[:, :, None] / number[:, :, None]
            first = ops.one_hot(first, self.num_experts, dtype="float32")
            share = ops.sum(first * mean, axis=1)
            probability = ops.sum(probabilities * mean, axis=1)
            balance = ops.sum(share * probability)
            balance /= ops.maximum(ops.sum(ops.max(real, axis=1)), 1.0)  # their groups
            balance *= self.num_experts * self.balance_weight
            sow(self, "losses", "balance", balance)
        if self.z_weight:
            squares = ops.square(ops.logsumexp(logits, axis=-1))
            z = ops.sum(squares * real) / ops.maximum(ops.sum(real), 1.0)
            sow(self, "losses", "router_z", self.z_weight * z)


class SwitchRouter(LearnedRouter):
    """The likeliest expert; its probability is the gate (Switch, section 2.1).

    `y = p_e f_e(x)` with `p = softmax(x W)` over all experts, so that W has a gradient,
    and e the largest.

    A token's choice depends on itself alone, and its place in an expert on earlier ones
    of its group: causal within a sequence, in training too. With full experts a row's
    output in training still depends on the rows before it.

    Args: see `LearnedRouter`.
    """

    def __init__(
        self, num_experts: int, jitter: float = 0.01, **kwargs: Unpack[SwitchKeywords]
    ):
        super().__init__(num_experts, jitter=jitter, **kwargs)


class GShardRouter(LearnedRouter):
    """The two likeliest experts, gates normalised to sum 1 (GShard, Algorithm 1).

    `y = g_1 f_1(x) + g_2 f_2(x)`, `g_i = p_i / (p_1 + p_2)` with `p = softmax(x W)`,
    normalised before drops, as Mesh TensorFlow does.

    In training this is not causal where experts are full: the second choice of a token
    has its place after the first choices of all tokens of its group, later ones too.
    In evaluation it is, since nothing is dropped.

    In training the second expert computes a token with probability `min(1, g_2 /
    second_threshold)`; in evaluation always, so that answers are not random (Mesh
    TensorFlow draws there too).

    Args:
        num_experts, capacity_factor: see `LearnedRouter`, and its others.
        second_threshold: float, 0.2 in Mesh TensorFlow and 0.5 in GShard. 0: the second
            expert computes always.
    """

    k = 2
    causal_in_training = False

    @checked
    def __init__(
        self,
        num_experts: Annotated[int, integer(2)],
        capacity_factor: float | None = 1.0,
        second_threshold: NonNegativeFloat = 0.2,
        **kwargs: Unpack[GShardKeywords],
    ):
        super().__init__(num_experts, capacity_factor, **kwargs)
        self.second_threshold = second_threshold

    @property
    def draws(self):
        return bool(self.jitter or self.second_threshold)

    def call(
        self, x: Tensor, tokens: Tensor, token_mask: Tensor, training: bool = False
    ) -> Routing:
        routing = super().call(x, tokens, token_mask, training)
        gates = routing.gates / ops.sum(routing.gates, axis=-1, keepdims=True)
        chosen = None
        if training and self.second_threshold:
            draws = keras.random.uniform(
                ops.shape(gates[..., 1]), dtype="float32", seed=self.seed_generator
            )
            second = draws * self.second_threshold < gates[..., 1]
            chosen = ops.stack([ops.ones_like(second), second], axis=-1)
        return routing._replace(gates=gates, chosen=chosen)
