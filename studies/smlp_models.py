"""The models that `studies.smlp` compares, and the paper's numbers."""

from typing import NamedTuple


class Model(NamedTuple):
    """A model of the comparison.

    Attributes:
        file: str, gin file of its architecture.
        bindings: list of str, gin bindings.
        perplexity: float, the paper's after 25K steps, at 0.8e12 FLOPs; None if it has
            none. For dense models it is read off a plot, after some 48K steps.
        words: int, the paper's thousands of words per second in training, or None.
    """

    file: str
    bindings: list
    perplexity: float | None = None
    words: int | None = None


# The widths give all the same matrix products per token within 1%: of a mixture those
# that its capacity makes room for count, filled or not, as the machine computes them.
_EXPERTS = ["NUM_EXPERTS = 8"]
_TRANSFORMER = ["NUM_LAYERS = 4", "NUM_HEADS = 4", "D_KV = 16", "D_FF = 256"]
_GMLP = ["NUM_LAYERS = 6", "D_FF = 272"]
_SMLP = ["NUM_LAYERS = 5", "NUM_SPARSE_LAYERS = 2", "D_FF = 240", "EXPERT_D_FF = 270"]


def _transformer(kind, *bindings, **paper):
    file = f"architectures/{kind}_lm.gin"
    return Model(file, [*_TRANSFORMER, *_EXPERTS, *bindings], **paper)


def _smlp(file, *bindings, **paper):
    return Model(file, [*_SMLP, *_EXPERTS, *bindings], **paper)


def _gmlp(heads):
    bindings = [*_GMLP, f"NUM_MIXING_HEADS = {heads}"]
    return Model("architectures/gmlp_heads_lm.gin", bindings, perplexity=15.7)


MODELS = {
    "transformer": Model("architectures/transformer_lm.gin", _TRANSFORMER, 14.3),
    "gmlp_1_head": _gmlp(1),
    "gmlp_8_heads": _gmlp(8),
    # A quarter more choices than tokens find room.
    "switch": _transformer("switch", "EXPERT_D_FF = 204", perplexity=15.31, words=185),
    # Two choices a token.
    "gshard": _transformer("gshard", "EXPERT_D_FF = 128", perplexity=19.26, words=136),
    "base": _transformer("base", perplexity=18.16, words=178),
    "hash": _transformer("hash", perplexity=13.57, words=176),
    "smlp": _smlp("architectures/smlp.gin", perplexity=13.46, words=192),
    "smlp_partial": _smlp(
        "architectures/smlp.gin", "SparseSpatialGate.routing = 'partial'"
    ),
    "gmlp_tmoe": _smlp("architectures/gmlp_tmoe_lm.gin"),
}

# Question: pairs of names, (better, worse) if the answer is yes.
QUESTIONS = {
    "Does sMLP beat the dense models?": [
        ("smlp", "gmlp_1_head"),
        ("smlp", "gmlp_8_heads"),
        ("smlp", "transformer"),
    ],
    "Does sMLP beat the mixtures in Transformers?": [
        ("smlp", name) for name in ("switch", "gshard", "base", "hash")
    ],
    "Does sMoE add anything to tMoE?": [("smlp", "gmlp_tmoe")],
    "Do heads, which sMoE is in a dense gMLP, add anything?": [
        ("gmlp_8_heads", "gmlp_1_head")
    ],
    "Does tMoE alone add anything to gMLP?": [("gmlp_tmoe", "gmlp_1_head")],
    "Is learned routing of channels better than none?": [("smlp_partial", "smlp")],
    "Do mixtures beat the Transformer that they are in?": [
        (name, "transformer") for name in ("switch", "gshard", "base", "hash")
    ],
}
