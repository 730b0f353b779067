"""Exact match by type of example and kind of type, and the metrics of texts by name.

seqio gives a metric the postprocessed targets and predictions and nothing else, so
`postprocess` puts the type of the example beside the text of its target.
"""

import collections
from typing import NamedTuple

from sklearn.metrics import precision_recall_fscore_support
from t5.evaluation import metrics as t5_metrics

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


def exact_match(targets, predictions):
    """Returns the percentage of predictions that equal their target but for blanks."""
    pairs = zip(targets, predictions, strict=True)
    hits = [normalize_whitespace(t) == normalize_whitespace(p) for t, p in pairs]
    return {"exact_match": 100.0 * sum(hits) / len(hits)}


def f1(targets, predictions):
    """Returns SQuAD's F1 of words, in percent, of one answer to each question."""
    return {"f1": t5_metrics.squad([[t] for t in targets], predictions)["f1"]}


def per_class(targets, predictions):
    """Returns precision, recall and F1 of each class, and their mean F1, in percent.

    The classes are the targets that occur. A prediction that is none of them is wrong.
    """
    classes = sorted(set(targets))
    rates = precision_recall_fscore_support(
        targets, predictions, labels=classes, zero_division=0
    )
    numbers = {
        f"{name}/{label}": 100.0 * float(rate)
        for name, of_classes in zip(
            ("precision", "recall", "f1"), rates[:3], strict=True
        )
        for label, rate in zip(classes, of_classes, strict=True)
    }
    return numbers | {"macro_f1": 100.0 * float(rates[2].mean())}


# Metrics of texts, under the names that gin files give them.
METRICS = {
    "accuracy": t5_metrics.accuracy,
    "bleu": t5_metrics.bleu,
    "exact_match": exact_match,
    "f1": f1,
    "per_class": per_class,
    "rouge": t5_metrics.rouge,
}
