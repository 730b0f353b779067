"""The variants that `studies.ablation` compares, and the papers' numbers."""

from typing import NamedTuple


class Variant(NamedTuple):
    """A variant to train, and the paper's number.

    Attributes:
        paper: float, the paper's number; None where the paper has none.
        file: str, the gin file of the architecture.
        bindings: list of str, gin's, on top of it.
    """

    paper: float | None
    file: str
    bindings: list


class Group(NamedTuple):
    """Variants that are compared.

    Attributes:
        title: str.
        measure: str, what the paper's numbers are.
        sign: 1 where the paper's smaller numbers are the better ones, else -1.
        variants: dictionary of names to `Variant`s.
    """

    title: str
    measure: str
    sign: int
    variants: dict


def _gmlp(paper, kind, d_ff):
    variant = f"SpatialGatingUnit.variant = '{kind}'"
    bindings = [variant, f"D_FF = {d_ff}", "NUM_LAYERS = 6"]
    return Variant(paper, "architectures/gmlp_mlm.gin", bindings)


_HEADS = ["NUM_HEADS = 4", "D_KV = 16", "NUM_LAYERS = 3"]


def _remixer(paper, *bindings):
    sublayers = "{'self_attention': @SelfAttention, 'remixer': @RemixerBlock}"
    common = [
        f"TransformerStack.sublayers = {sublayers}",
        "TransformerStack.norm = @RMSNorm",
        "TransformerStack.position_bias = @RelativePositionBias",
        "RelativePositionBias.num_heads = 4",
        "SelfAttention.num_heads = 4",
        "SelfAttention.d_kv = 16",
        "RemixerBlock.d_ff = 128",
        "RemixerBlock.residual = 'hidden'",
        "NUM_LAYERS = 3",
    ]
    return Variant(paper, "architectures/encoder_only.gin", [*common, *bindings])


# The widths give all of the first group equal parameters, within 3%. The second group
# has equal widths, as in the paper: a gate adds its own weights.
GROUPS = [
    Group(
        'gMLP: "Pay Attention to MLPs", Table 3',
        "perplexity",
        1,
        {
            "transformer_relative": Variant(
                4.26, "architectures/bert_relative.gin", [*_HEADS, "D_FF = 256"]
            ),
            "gmlp_split": _gmlp(4.35, "split", 256),
            "gmlp_multiplicative": _gmlp(4.53, "multiplicative", 192),
            "gmlp_additive": _gmlp(4.97, "additive", 192),
            "gmlp_linear": _gmlp(5.14, "linear", 192),
            "mlp_mixer": Variant(
                5.34,
                "architectures/encoder_only.gin",
                [
                    "TransformerStack.sublayers = {'token_mixing': "
                    "@TokenMixingMLP, 'feed_forward': @BertFeedForward}",
                    "TokenMixingMLP.d_tokens = 96",
                    "BertFeedForward.d_ff = %D_FF",
                    "D_FF = 192",
                    "NUM_LAYERS = 4",
                ],
            ),
            "transformer_minus_attention": Variant(
                5.64,
                "architectures/bert_relative.gin",
                [
                    *_HEADS,
                    "D_FF = 320",
                    "TransformerStack.sublayers = {'self_attention': "
                    "@PositionalAttention, 'feed_forward': @BertFeedForward}",
                    "PositionalAttention.num_heads = %NUM_HEADS",
                    "PositionalAttention.d_kv = %D_KV",
                ],
            ),
        },
    ),
    Group(
        'Remixer: "Remixers", Table 5',
        "score",
        -1,
        {
            "remixer_full": _remixer(76.9),
            "remixer_alpha_gated": _remixer(75.6, "RemixerBlock.alpha = 'gated'"),
            "remixer_gate": _remixer(75.6, "RemixerBlock.composition = 'gate'"),
            "remixer_none": _remixer(74.8, "RemixerBlock.composition = 'none'"),
            "remixer_multiplicative": _remixer(
                None, "RemixerBlock.composition = 'multiplicative'"
            ),
            "remixer_subtractive": _remixer(
                None, "RemixerBlock.composition = 'subtractive'"
            ),
        },
    ),
]
VARIANTS = {name: v for group in GROUPS for name, v in group.variants.items()}
