"""Mixing matrices and attention of a run over one text, for `/observe`."""

import numpy as np

from remixer_tf.analysis.observe import locate, observe, token_name
from remixer_tf.data.codec import ragged
from remixer_tf.data.vocabularies import special_ids
from remixer_tf.layers import MixingFacts, Sublayer
from remixer_tf.server.limits import invalid

MOST_TOKENS = 96  # of a matrix's side, to bound an answer


def pair_batch(scorer, inputs, targets):
    """Returns the model's batch of ids of a question and an answer, and if it is cut.

    Args:
        scorer: the run's `TextScorer`.
        inputs, targets: lists of int.
    """
    batch, _, trimmed = scorer.codec.pairs(ragged([inputs]), ragged([targets]))
    return batch, bool(trimmed[0])


def observed(model, codec, batch, layer=None):
    """Returns matrices of a model on one text, as JSON has them.

    Args:
        model: the model.
        codec: the `Codec` of its texts.
        batch: dictionary of int `[1, length]`.
        layer: str, the path of one layer, to get each of its heads. None: all layers,
            and the mean of the heads of each. Raises a `Refusal` for an unknown layer.
    """
    batch = {name: np.asarray(value) for name, value in batch.items()}
    tokens = _names(codec, batch)
    layers = []
    for source, name, value in observe(model, batch):
        if name == "alpha" or layer not in (None, source.path):
            continue
        stack, block, part = locate(source)
        stack = stack if stack in tokens else next(iter(tokens))
        reads_encoder = name == "attention" and getattr(source, "reads_encoder", False)
        facts = MixingFacts("attention", False)
        if name == "mixing" and isinstance(source, Sublayer):
            facts = source.mixing_facts(value.shape[-1])
        layers.append(
            {
                "layer": source.path,
                "kind": name,
                "symbol": facts.symbol,
                "signed": (value < 0).any() if facts.signed is None else facts.signed,
                "block": block,
                "part": part.removesuffix("/mixing"),
                "rows": stack,
                "columns": "encoder" if reads_encoder else stack,
                "heads": len(value),
                "values": _rounded(value if layer else value.mean(axis=0)[None]),
            }
        )
    if layer and not layers:
        raise invalid(f"There is no layer {layer!r:.80} that mixes or attends.")
    return {"tokens": tokens, "layers": layers}


def _rounded(matrices):
    """Matrices `[n, target, source]` as lists, of the first tokens, rounded."""
    kept = matrices[:, :MOST_TOKENS, :MOST_TOKENS].astype(np.float64)
    return [
        [[None if np.isnan(x) else x for x in row] for row in matrix]
        for matrix in np.round(kept, 4).tolist()
    ]


def _names(codec, batch):
    """Returns {stack: {"reads": names of tokens, "writes": names}}."""
    found = {}
    for stack, feature, names in (
        ("encoder", "inputs", ("encoder_input_tokens",) * 2),
        ("decoder", "targets", ("decoder_input_tokens", "decoder_target_tokens")),
    ):
        if names[0] not in batch:
            continue
        vocabulary = codec.vocabulary(feature)
        reads, writes = (batch[name][0] for name in names)
        length = min(np.flatnonzero(writes).max(initial=0) + 1, MOST_TOKENS)
        marks = _marks(vocabulary) if "encoder_token_types" in batch else {}
        found[stack] = {
            key: [marks.get(i) or token_name(vocabulary, i) for i in ids.tolist()]
            for key, ids in (("reads", reads[:length]), ("writes", writes[:length]))
        }
    return found


def _marks(vocabulary):
    """The names of the special tokens of an encoder's text."""
    special = special_ids(vocabulary)
    return {special.cls: "[CLS]", special.sep: "[SEP]"}
