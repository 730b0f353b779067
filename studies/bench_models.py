"""The contestants of `studies.bench`, its settings, and the papers' claims."""

import pathlib
from typing import NamedTuple

from remixer_tf import configuration


class Setting(NamedTuple):
    """A task that contestants learn.

    Attributes:
        run: str, gin file of how it trains.
        mixing: str, gin file of the model that holds a mixer.
        splits: list of str that are evaluated; the picture shows the first one.
    """

    run: str
    mixing: str
    splits: list


class Model(NamedTuple):
    """A contestant in one setting.

    Attributes:
        files: list of str, gin files of its model.
        bindings: list of str, gin bindings on top of them.
    """

    files: list
    bindings: list


SETTINGS = {
    "mlm": Setting(
        "runs/bench_mlm.gin", "architectures/mixing_mlm.gin", ["validation"]
    ),
    "lm": Setting("runs/bench_lm.gin", "architectures/mixing_lm.gin", ["validation"]),
    "seq2seq": Setting(
        "runs/bench_seq2seq.gin", "architectures/mixing_seq2seq.gin", ["dev", "gen"]
    ),
}
REFERENCE = "attention"  # whose parameters and FLOPs the others have
MATCHES = ["parameters", "flops"]
# Their hidden units see later tokens: no language models, and a decoder has attention.
FOR_ENCODERS = ["fnet", "hyper_mixer"]

_REMIXER = [
    "RemixerBlock.d_ff = %D_FF",
    "RemixerBlock.residual = 'hidden'",
    "BertSelfAttention.num_heads = %NUM_HEADS",
    "BertSelfAttention.d_kv = %D_KV",
    "TransformerStack.positions = @PositionEmbedding",
    "TransformerStack.sublayers = {'self_attention': @BertSelfAttention, "
    "'remixer': @RemixerBlock}",
]
# Two blocks for each layer of the others, which have two sublayers.
_TWO_BLOCKS = ["TransformerStack.sublayers = {'gmlp': @GatedMLP, 'gmlp_2': @GatedMLP}"]
_TINY_ATTENTION = [
    "GatedMLP.attention = @TinyAttention",
    "TinyAttention.d_kv = %D_ATTENTION",
]

# Architectures that are more than a mixer and a feed-forward layer.
_WHOLE = {
    "relative_attention": {
        "mlm": Model(["architectures/bert_relative.gin"], []),
        "lm": Model(["architectures/transformer_lm.gin"], []),
        "seq2seq": Model(["architectures/t5_1_1.gin"], []),
    },
    "remixer": {
        "mlm": Model(["architectures/encoder_only.gin"], _REMIXER),
        "lm": Model(["architectures/decoder_only.gin"], _REMIXER),
        "seq2seq": Model(["architectures/remixer.gin"], []),
    },
    "gmlp": {
        "mlm": Model(["architectures/gmlp_mlm.gin"], _TWO_BLOCKS),
        "lm": Model(["architectures/gmlp_lm.gin"], _TWO_BLOCKS),
        "seq2seq": Model(["architectures/gmlp.gin"], []),
    },
    "amlp": {
        "mlm": Model(["architectures/amlp_mlm.gin"], _TWO_BLOCKS),
        "lm": Model(["architectures/gmlp_lm.gin"], [*_TWO_BLOCKS, *_TINY_ATTENTION]),
        "seq2seq": Model(["architectures/amlp.gin"], _TINY_ATTENTION[1:]),
    },
}


def contestants(setting):
    """Returns {name: `Model`} of a setting: all of gin/mixers, and whole models.

    The reference comes first.
    """
    mixing = SETTINGS[setting].mixing
    mixers = pathlib.Path(configuration.gin_folder(), "mixers").glob("*.gin")
    found = {REFERENCE: Model([mixing, f"mixers/{REFERENCE}.gin"], [])}
    for name in sorted(file.stem for file in mixers):
        file = f"mixers/{name}.gin"
        if name not in FOR_ENCODERS:
            found[name] = Model([mixing, file], [])
        elif setting == "mlm":
            found[name] = Model([mixing, file], [])
        elif setting == "seq2seq":  # Its decoder is the reference's.
            bindings = ["DECODER_MIXER = @BertSelfAttention"]
            found[name] = Model([*found[REFERENCE].files, file], bindings)
    return found | {name: models[setting] for name, models in _WHOLE.items()}


class Claim(NamedTuple):
    """A paper's claim about two contestants.

    Attributes:
        text: str, the claim.
        source: str, the paper.
        pairs: list of (setting, first, second), one for each test.
        near: bool. If it is true, the first comes near to the second. Else it is
            better.
        why_not: str, the reason if there is no test.
    """

    text: str
    source: str
    pairs: list = []
    near: bool = False
    why_not: str = ""


# Two forms of a Transformer. What a claim says of one has to hold for both.
_ATTENTION = [REFERENCE, "relative_attention"]


def _less_attention(settings, name):
    """The tests of a contestant against each form of attention, in some settings."""
    return [(each, name, second) for each in settings for second in _ATTENTION]


_GMLP = "gMLP, Liu et al. 2021"
_REMIXERS = "Remixers"
_SYNTHESIZER = "Synthesizer, Tay et al. 2020"
_CONVOLUTIONS = "Wu et al. 2019"
_FNET = "FNet, Lee-Thorp et al. 2021"
_HYPER_MIXER = "HyperMixer, Mai et al. 2022"
_MASKED = "Masked mixers, Badger 2024"
_TNN = "TNN, Qin et al. 2023"

CLAIMS = [
    Claim(
        "gMLP comes near to a Transformer with relative positions in MLM (Table 3)",
        _GMLP,
        [("mlm", "gmlp", "relative_attention")],
        near=True,
    ),
    Claim(
        "A tiny attention makes gMLP better in MLM (Table 6)",
        _GMLP,
        [("mlm", "amlp", "gmlp")],
    ),
    Claim(
        "aMLP is better than the Transformer in MLM (Table 6)",
        _GMLP,
        _less_attention(["mlm"], "amlp"),
    ),
    Claim(
        "Pairs of sentences need attention, and single sentences do not (Section 4.2)",
        _GMLP,
        why_not="no setting has pairs of sentences; `studies.behaviour` has",
    ),
    Claim(
        "Remixer is better than T5.1.1 from text to logical forms (Table 4)",
        _REMIXERS,
        [("seq2seq", "remixer", "relative_attention")],
    ),
    Claim(
        "A mixing block next to attention is better than mixing alone (Tables 2 and 3)",
        _REMIXERS,
        [("mlm", "remixer", "spatial"), ("seq2seq", "remixer", "spatial")],
    ),
    Claim(
        "Remixer is better than T5.1.1 on SuperGLUE and entailment (Tables 2 and 3)",
        _REMIXERS,
        why_not="a model of this size answers such tasks at chance",
    ),
    Claim(
        "Random attention matrices come near to dot products",
        _SYNTHESIZER,
        _less_attention(["lm", "seq2seq"], "random_synthesizer"),
        near=True,
    ),
    Claim(
        "Matrices made from each token alone come near to dot products",
        _SYNTHESIZER,
        _less_attention(["lm", "seq2seq"], "dense_synthesizer"),
        near=True,
    ),
    Claim(
        "A random Synthesizer is better than dynamic convolution in MLM (abstract)",
        _SYNTHESIZER,
        [("mlm", "random_synthesizer", "dynamic_convolution")],
    ),
    Claim(
        "Dynamic convolution is better than lightweight convolution",
        _CONVOLUTIONS,
        [
            ("lm", "dynamic_convolution", "lightweight_convolution"),
            ("seq2seq", "dynamic_convolution", "lightweight_convolution"),
        ],
    ),
    Claim(
        "Lightweight convolution comes near to self-attention",
        _CONVOLUTIONS,
        _less_attention(["lm", "seq2seq"], "lightweight_convolution"),
        near=True,
    ),
    Claim(
        "Dynamic convolution is better than self-attention",
        _CONVOLUTIONS,
        _less_attention(["lm", "seq2seq"], "dynamic_convolution"),
    ),
    Claim(
        "Fixed Gaussian weights come near to learned self-attention",
        "You et al. 2020",
        _less_attention(["seq2seq"], "gaussian_attention"),
        near=True,
    ),
    Claim(
        "Attention is better than Fourier transforms in MLM",
        _FNET,
        [("mlm", each, "fnet") for each in _ATTENTION],
    ),
    Claim(
        "FNet keeps 92 to 97% of BERT's accuracy on GLUE",
        _FNET,
        why_not="GLUE needs pre-training at the paper's size",
    ),
    Claim(
        "HyperMixer is better than MLPs whose mixing no token changes (there on GLUE)",
        _HYPER_MIXER,
        [("mlm", "hyper_mixer", "gmlp"), ("mlm", "hyper_mixer", "spatial")],
    ),
    Claim(
        "HyperMixer comes near to a Transformer (there on GLUE)",
        _HYPER_MIXER,
        _less_attention(["mlm"], "hyper_mixer"),
        near=True,
    ),
    Claim(
        "In contexts below 512 tokens a masked mixer is a better language model than a "
        "Transformer after equal training",
        _MASKED,
        _less_attention(["lm"], "masked_mixer"),
    ),
    Claim(
        "TNN is better than a Transformer in causal language modelling",
        _TNN,
        _less_attention(["lm"], "tnn"),
    ),
    Claim(
        "TNN is better than a Transformer in MLM",
        _TNN,
        _less_attention(["mlm"], "tnn"),
    ),
    Claim(
        "TriMLP is better than attention in recommending a sequence's next item",
        "TriMLP, Jiang et al. 2023",
        why_not="no setting recommends; its rows are in the tables",
    ),
    Claim(
        "cgMLP next to attention is better than each alone in speech",
        "Branchformer, Peng et al. 2022",
        why_not="no setting is speech; its rows are in the tables",
    ),
]
