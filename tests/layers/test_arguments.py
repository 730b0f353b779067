"""Wrong arguments of public classes: one line that names the argument."""

import functools
import inspect

import numpy as np
import pytest

from remixer_tf import layers, models
from remixer_tf.errors import UserError
from remixer_tf.layers import FeedForward

HEADS = {"num_heads": 2, "d_kv": 4}
PARTS = {"d_ff": functools.partial(FeedForward, 8)}
STACK = functools.partial(models.TransformerStack, PARTS, 1)
SIZES = {"vocab_size": 9, "d_model": 4}
# {class: arguments that it needs}
NEEDS = {
    layers.BertSelfAttention: HEADS,
    layers.BlockTokenMLP: {"d_tokens": 4, "window": 2},
    layers.CrossAttention: HEADS,
    layers.Dropout: {"rate": 0.1},
    layers.FeedForward: {"d_ff": 8},
    layers.GatedMLP: {"d_ff": 8},
    layers.GaussianAttention: HEADS,
    layers.HyperMixing: {"d_hidden": 4},
    layers.LayerNorm: {},
    layers.LengthMixing: {},
    layers.MoE: {"num_experts": 2, "d_ff": 8},
    layers.PositionalAttention: HEADS,
    layers.RMSNorm: {},
    layers.RelativePositionBias: {"num_heads": 2},
    layers.RemixerBlock: {"d_ff": 8},
    layers.SelfAttention: HEADS,
    layers.SlidingTokenMLP: {"d_tokens": 4, "window": 2},
    layers.SpatialGatingUnit: {},
    layers.TinyAttention: {"d_out": 4, "d_kv": 4},
    layers.TokenMixingMLP: {"d_tokens": 4},
    layers.ToeplitzUnit: {"d_hidden": 4, "d_positions": 4},
    models.DecoderOnly: {"decoder": STACK, **SIZES},
    models.EmbeddingHead: {},
    models.EncoderDecoder: {"encoder": STACK, "decoder": STACK, **SIZES},
    models.EncoderOnly: {"encoder": STACK, "head": models.MaskedLMHead, **SIZES},
    models.MaskedLMHead: {},
    models.TransformerStack: {"sublayers": PARTS, "num_layers": 1},
}
FLAGS = [
    (kind, p.name)
    for kind in NEEDS
    for p in inspect.signature(kind).parameters.values()
    if isinstance(p.default, bool) and p.name != "causal"
]
OTHERS = [
    (layers.Dropout, "shared_axes", [None, 1, "x"]),
    (layers.FeedForward, "activation", [np.ones(2), 5, "rleu"]),
    (layers.GaussianAttention, "offsets", [1, "ab", ["a"], [True], [float("nan")]]),
    (layers.LayerNorm, "epsilon", [None, "x", 0, -1, float("nan")]),
    (layers.RMSNorm, "epsilon", [None, "x", 0, True, float("inf")]),
    (layers.RemixerBlock, "alpha", [None, [], {}, np.ones(2), 2, float("nan"), "x"]),
    (layers.TinyAttention, "d_out", ["x", 0, -1, 1.5]),
    (layers.ToeplitzUnit, "decay", [None, "x", 0, 1.01, float("nan")]),
    (layers.CrossAttention, "stddev", ["x", 0, [], float("nan")]),
    (models.EmbeddingHead, "pooling", [None, 5, "mean", [], ["men"]]),
    (models.EmbeddingHead, "layers", [None, 5, "x", [5], [[1]]]),
    (models.MaskedLMHead, "bias_size", ["x", 0, 1.5]),
]


def is_refused(kind, name, value):
    with pytest.raises(UserError, match=name) as caught:
        kind(**{**NEEDS[kind], name: value})
    assert "Received: " in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name"), FLAGS, ids=lambda x: getattr(x, "__name__", x)
)
def test_a_flag_is_true_or_false(kind, name):
    """`gated="no"` would be true."""
    for value in ("no", 0, 1, [], np.ones(2)):
        is_refused(kind, name, value)


@pytest.mark.parametrize(
    ("kind", "name", "values"), OTHERS, ids=lambda x: getattr(x, "__name__", "")
)
def test_other_arguments(kind, name, values):
    for value in values:
        is_refused(kind, name, value)
