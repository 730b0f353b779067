"""Exact match, overall, by type of example and by kind of type.

seqio gives a metric the postprocessed targets and predictions and nothing else, so
`postprocess` puts the type of the example beside the text of its target.
"""

import collections
from typing import NamedTuple

LEXICAL = "lexical"
STRUCTURAL = "structural"


class TargetWithType(NamedTuple):
    """A target's text and the type of its example, the 'type' feature."""

    text: str
    type: str


def normalize_whitespace(text):
    """Returns `text` without outer spaces, every run of whitespace made one space."""
    return " ".join(text.split())


def postprocess(text, example=None, is_target=False):
    """seqio postprocessor: the text of a prediction, a `TargetWithType` of a target.

    Args:
        text: str, decoded prediction, or target as it was before tokenization.
        example: dictionary of NumPy values with the bytes 'type'. Read for targets.
        is_target: bool.

    Returns:
        str, or `TargetWithType` if `is_target`; whitespace normalised.
    """
    text = normalize_whitespace(text)
    return TargetWithType(text, example["type"].decode()) if is_target else text


def exact_match_by_type(kind_of_type):
    """Makes a metric: the percentage of predictions equal to their targets.

    Args:
        kind_of_type: dictionary, type -> kind, for example "lexical". Types that are
            not in it count in the overall and in their own number only.

    Returns:
        a seqio metric function of `targets`, each a `TargetWithType`, and `predictions`
        (str). Its numbers are percentages of examples, as T5's are: `exact_match`, and
        `exact_match/KIND` and `exact_match/type/TYPE` of those that occur.
    """

    def exact_match(targets, predictions):
        if len(targets) != len(predictions) or not targets:
            raise ValueError(
                "Exact match needs one prediction for each target, and at least one. "
                f"Received: {len(targets)} targets and {len(predictions)} predictions."
            )
        hits = collections.defaultdict(list)
        for target, prediction in zip(targets, predictions, strict=True):
            hit = target.text == prediction
            hits["exact_match"].append(hit)
            if target.type in kind_of_type:
                hits[f"exact_match/{kind_of_type[target.type]}"].append(hit)
            hits[f"exact_match/type/{target.type}"].append(hit)
        return {
            name: 100.0 * sum(values) / len(values)
            for name, values in sorted(hits.items())
        }

    return exact_match
