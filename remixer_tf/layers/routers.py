"""Which experts compute a token: what routers share, and those that balance."""

import math
from typing import Any, NamedTuple, Unpack

import keras
import numpy as np
from keras import ops

from remixer_tf.arguments import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Shape,
    Tensor,
    checked,
)
from remixer_tf.kernels.largest import largest
from remixer_tf.layers.assignment import assign_balanced
from remixer_tf.layers.axes import NamedAxes
from remixer_tf.layers.keywords import LayerKeywords
from remixer_tf.layers.saving import SavesParts
from remixer_tf.layers.sowing import sow


class Routing(NamedTuple):
    """A router's choices for the tokens `[groups, tokens]`, k for each token.

    Attributes:
        experts: int32 `[groups, tokens, k]`, the expert of each choice; first choices
            get their place in an expert before all second ones.
        gates: float32 `[groups, tokens, k]`, what the expert's output is multiplied by.
        chosen: bool `[groups, tokens, k]`, False for what no expert is to compute.
            None: all of them.
        logits: float32 `[groups, tokens, num_experts]`, for the statistics. None where
            there are none.
    """

    experts: Any
    gates: Any
    chosen: Any = None
    logits: Any = None


class Router(SavesParts, NamedAxes, keras.layers.Layer):
    """Chooses k experts for each token, in float32. A router of one's own derives here.

    It writes `call`, and `build` if it has weights; `MoE` does the rest: capacity,
    padding, dispatch, statistics.

    Args:
        num_experts: int.
        capacity_factor: float. In training an expert computes at most
            `capacity_factor k tokens / num_experts` choices of a group, rounded up, and
            at least 4; the output for choices beyond them is 0. None drops nothing, as
            evaluation does.

    Attributes:
        k: int, choices of a token.
        causal: bool, whether choices in evaluation depend on no other token. Routers
            where they do cannot be used in decoders.
        causal_in_training: bool, whether in training too they depend on no later token.
            False, by design, of routers that balance all tokens of a group.
        needs_tokens: bool, whether `call` reads the tokens' ids.
    """

    k = 1
    causal = True
    causal_in_training = True
    needs_tokens = False

    @checked
    def __init__(
        self,
        num_experts: PositiveInt,
        capacity_factor: NonNegativeFloat | None = 1.25,
        **kwargs: Unpack[LayerKeywords],
    ):
        super().__init__(**{**kwargs, "dtype": "float32"})
        self.num_experts = num_experts
        self.capacity_factor = capacity_factor

    def call(
        self, x: Tensor, tokens: Tensor, token_mask: Tensor, training: bool = False
    ) -> Routing:
        """Chooses.

        Args:
            x: float32 `[groups, tokens, d_model]`. A group is a row of the batch in
                evaluation.
            tokens: int32 `[groups, tokens]`, the ids, or None.
            token_mask: int32 `[groups, tokens]`, 1 on real tokens. `MoE` lets padding
                take no capacity, whatever is chosen for it.
            training: bool.

        Returns:
            a `Routing`.
        """
        raise NotImplementedError

    def capacity(self, tokens: int) -> int | None:
        """The most choices of a group of `tokens` tokens that an expert computes.

        None if it computes all of them.
        """
        if self.capacity_factor is None:
            return None
        share = self.capacity_factor * self.k * tokens / self.num_experts
        return max(4, math.ceil(share))


class BaseRouter(Router):
    """As many tokens for each expert, with the most affinity (BASE layers).

    `y = sigmoid(x . w_e) f_e(x)` (Lewis et al. 2021, Equation 2; section 3.1 for the
    assignment, see `assign_balanced`). Within the residual `Block`, `x + y` is what
    BASE writes as `a (x + f) + (1 - a) x`; x is normalised by the block, where BASE
    reads it raw. The vectors w_e start orthogonal, of length 0.1, and learn through the
    gate alone. In evaluation each token takes its best expert.

    In training this is not causal: which expert has a token depends on all tokens of
    its group, later ones too. In evaluation it is.

    Sows the statistic "agreement", the share of tokens that in training have the expert
    they would have in evaluation.

    Args:
        num_experts, capacity_factor: see `Router`; nothing is dropped from 1.0 on.
    """

    causal_in_training = False

    def __init__(
        self,
        num_experts: int,
        capacity_factor: float | None = 1.0,
        **kwargs: Unpack[LayerKeywords],
    ):
        super().__init__(num_experts, capacity_factor, **kwargs)

    def build(self, input_shape: Shape) -> None:
        self.kernel = self.add_weight(
            name="kernel",
            shape=(input_shape[-1], self.num_experts),  # [d_model, num_experts]
            axes=(None, None),
            initializer=keras.initializers.Orthogonal(gain=0.1),
        )

    def call(
        self, x: Tensor, tokens: Tensor, token_mask: Tensor, training: bool = False
    ) -> Routing:
        logits = ops.matmul(x, self.kernel)
        best = experts = largest(logits)
        if training:
            experts = assign_balanced(ops.stop_gradient(logits), token_mask)
            real = ops.cast(token_mask, "float32")
            agrees = ops.cast(ops.equal(experts, best), "float32")
            number = ops.maximum(ops.sum(real), 1.0)
            sow(self, "statistics", "agreement", ops.sum(agrees * real) / number)
        is_expert = ops.one_hot(experts, self.num_experts, dtype="float32")
        gates = ops.sigmoid(ops.sum(logits * is_expert, axis=-1))
        return Routing(experts[..., None], gates[..., None], logits=logits)


class HashRouter(Router):
    """An expert for each id of the vocabulary, fixed before training (Hash Layers).

    `y = f_e(x)` with e from a table that is drawn uniformly (Roller et al. 2021,
    section 3). It is saved with the weights, so that a run continues with its own.

    Nothing is dropped, in training neither: the paper has no capacity, and a table of
    few frequent ids is never even.

    A token's choice depends on its id alone: causal, and with a capacity as
    `SwitchRouter` is.

    Args:
        num_experts, capacity_factor: see `Router`.
        vocab_size: int.
        seed: int, of the table drawn. Layers with one seed have one table.
    """

    needs_tokens = True

    @checked
    def __init__(
        self,
        num_experts: int,
        vocab_size: PositiveInt,
        capacity_factor: float | None = None,
        seed: NonNegativeInt = 0,
        **kwargs: Unpack[LayerKeywords],
    ):
        super().__init__(num_experts, capacity_factor, **kwargs)
        self.vocab_size = vocab_size
        self.seed = seed

    def build(self, input_shape: Shape) -> None:
        rng = np.random.default_rng(self.seed)
        table = rng.integers(0, self.num_experts, self.vocab_size)
        # Numbers, since int32 variables have no place on GPUs.
        self.table = self.add_weight(
            name="table",
            shape=(self.vocab_size,),  # [vocab_size]
            axes=(None,),
            initializer=lambda shape, dtype: ops.cast(table, dtype),
            trainable=False,
            autocast=False,
        )

    def call(
        self, x: Tensor, tokens: Tensor, token_mask: Tensor, training: bool = False
    ) -> Routing:
        experts = ops.cast(ops.take(self.table, tokens), "int32")[..., None]
        return Routing(experts, ops.ones_like(experts, dtype="float32"))
