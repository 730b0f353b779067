"""Every sublayer in each of its variants, for the tests that go through all of them."""

import functools
import itertools

from remixer_tf.layers import (
    BaseRouter,
    BertFeedForward,
    BertSelfAttention,
    BlockTokenMLP,
    CrossAttention,
    FeedForward,
    GatedFeedForward,
    GatedMLP,
    LengthMixing,
    MoE,
    PositionalAttention,
    RemixerBlock,
    SelfAttention,
    SlidingTokenMLP,
    SparseSpatialGate,
    SpatialGatingUnit,
    SwitchRouter,
    TinyAttention,
    TokenMixingMLP,
)


class Named(functools.partial):
    """A factory whose text is short."""

    def __repr__(self):
        options = ", ".join(f"{name}={value}" for name, value in self.keywords.items())
        return f"{self.func.__name__}({options})"


_CAUSAL = [{}, {"causal": True}]
_BOOL = [False, True]
_REMIXERS = [
    {},
    {"d_ff": None, "residual": "output"},
    {"num_mixing_heads": 2},
    {"toeplitz": True},
    {"alpha": 0.3},
    {"alpha": "learned_scalar"},
    {"alpha": "learned_vector"},
    {"alpha": "gated"},
    {"composition": "none"},
    {"composition": "multiplicative"},
    {"composition": "subtractive"},
    {"composition": "gate"},
    {"composition": "gate", "alpha": "gated", "activation": "gelu_exact"},
]
_GATES = [
    {},
    {"toeplitz": True},
    {"variant": "multiplicative"},
    {"variant": "additive"},
    {"variant": "linear"},
    {"num_mixing_heads": 4},
]
_GATED_MLPS = [
    *({"gate": Named(SpatialGatingUnit, **gate)} for gate in _GATES),
    {"gate": Named(SparseSpatialGate, num_experts=4)},
    {"attention": Named(TinyAttention, d_kv=4)},
    {
        "attention": Named(TinyAttention, d_kv=4),
        "gate": Named(SpatialGatingUnit, variant="additive", toeplitz=True),
    },
]


def _variants():
    """Yields (class, its arguments, arguments of `check_sublayer` but `causal`)."""
    heads = {"num_heads": 3, "d_kv": 4}
    for cls, relative_bias in itertools.product(
        (SelfAttention, BertSelfAttention), _BOOL
    ):
        for causal in _CAUSAL:
            yield cls, {**heads, "relative_bias": relative_bias, **causal}, {}
    for causal in _CAUSAL:
        yield PositionalAttention, {**heads, **causal}, {}
    yield CrossAttention, heads, {"causal": True, "reads_encoder": True}
    for cls in (FeedForward, GatedFeedForward, BertFeedForward):
        yield cls, {"d_ff": 10}, {"causal": True}
    for router in (BaseRouter, SwitchRouter):
        mixture = {"num_experts": 3, "d_ff": 10, "router": router, "gated": True}
        yield MoE, mixture, {"causal": True}
    for heads, toeplitz, softmax in itertools.product((1, 3), _BOOL, _BOOL):
        mixing = {"num_mixing_heads": heads, "toeplitz": toeplitz, "softmax": softmax}
        limit = {"max_length": 9}
        for causal in _CAUSAL:
            yield LengthMixing, {**mixing, "use_bias": True, **causal, **limit}, limit
    limit = {"max_length": 8}
    for choice, causal in itertools.product(_REMIXERS, _CAUSAL):
        remixer = {"d_ff": 16, "residual": "hidden", **choice}
        yield RemixerBlock, {**remixer, **causal, **limit}, limit
    for choice, causal in itertools.product(_GATED_MLPS, _CAUSAL):
        yield GatedMLP, {"d_ff": 16, **choice, **causal, **limit}, limit
    for gated in _BOOL:
        mixing = {"d_tokens": 10, "gated": gated}
        yield TokenMixingMLP, {**mixing, **limit}, {**limit, "packs": False}
        for window in (1, 3, 9):
            yield SlidingTokenMLP, {**mixing, "window": window}, {"causal": True}
        for window in (1, 3, 7, 9):
            mixing = {"d_tokens": 2 * window, "gated": gated, "window": window}
            yield BlockTokenMLP, mixing, {"causal": True, "packs": False}


# Name -> (factory, keyword arguments of `check_sublayer`).
SUBLAYERS = {
    f"{cls.__name__}({', '.join(f'{k}={v}' for k, v in arguments.items())})": (
        functools.partial(cls, **arguments),
        {"causal": arguments.get("causal", False), **rules},
    )
    for cls, arguments, rules in _variants()
}


def _of_each_class(names):
    return {name.partition("(")[0]: name for name in names}.values()


# Quick tests try the last variant of each class, and slow tests the first one as well.
ONE_OF_EACH_CLASS = [*_of_each_class(SUBLAYERS)]
SLOW = [*_of_each_class(reversed(SUBLAYERS))]
