"""Exact match by type of example and kind of type, and the metrics of texts by name.

seqio gives a metric the postprocessed targets and predictions and nothing else, so
`postprocess` puts the type of the example beside the text of its target.
"""

import collections
import re
import string
from typing import NamedTuple

from remixer_tf.errors import UserError
from remixer_tf.tasks.t5_library import import_t5

LEXICAL = "lexical"
STRUCTURAL = "structural"


class TargetWithType(NamedTuple):
    """A target's text and the type of its example, the 'type' feature."""

    text: str
    type: str


def normalize_whitespace(text):
    """Returns `text` without outer spaces, every run of whitespace made one space."""
    return " ".join(text.split())


def normalize_answer(text):
    """Returns a text in small letters, without punctuation, articles and outer blanks.

    So SQuAD's scripts compare answers (Rajpurkar et al. 2016, section 6.1).
    """
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return normalize_whitespace(re.sub(r"\b(a|an|the)\b", " ", text))


def word_f1(text, answer):
    """Returns the F1 of the words of two texts, in [0, 1]; 1 if both have none."""
    text, answer = text.split(), answer.split()
    if not text or not answer:
        return float(text == answer)
    common = (collections.Counter(text) & collections.Counter(answer)).total()
    return 2 * common / (len(text) + len(answer))


def postprocess(text, example=None, is_target=False):
    """seqio postprocessor: the text of a prediction, a `TargetWithType` of a target.

    A target's type is that of its example, a dictionary with the bytes 'type'.
    Whitespace is normalised.
    """
    text = normalize_whitespace(text)
    return TargetWithType(text, example["type"].decode()) if is_target else text


def exact_match_by_type(kind_of_type):
    """Makes a metric: the percentage of predictions equal to their targets.

    Args:
        kind_of_type: dictionary, type -> kind, for example "lexical". Types that are
            not in it count in the overall and in their own number only.

    Returns:
        a seqio metric function of `TargetWithType`s and str: `exact_match`, and
        `exact_match/KIND` and `exact_match/type/TYPE` of those that occur.
    """

    def exact_match(targets, predictions):
        if len(targets) != len(predictions) or not targets:
            raise UserError(
                "Exact match needs one prediction for each target, and at least one. "
                f"Received: {len(targets)} targets and {len(predictions)} predictions."
            )
        hits = collections.defaultdict(list)
        for target, prediction in zip(targets, predictions, strict=True):
            names = ["exact_match", f"exact_match/type/{target.type}"]
            if target.type in kind_of_type:
                names.append(f"exact_match/{kind_of_type[target.type]}")
            for name in names:
                hits[name].append(target.text == prediction)
        return {name: _percent(values) for name, values in sorted(hits.items())}

    return exact_match


def _percent(values):
    return 100.0 * sum(values) / len(values)


def exact_match(targets, predictions):
    """Returns the percentage of predictions that equal their target but for blanks."""
    pairs = zip(targets, predictions, strict=True)
    equal = [normalize_whitespace(t) == normalize_whitespace(p) for t, p in pairs]
    return {"exact_match": _percent(equal)}


def accuracy(targets, predictions):
    """Returns the percentage of predictions that equal their target."""
    pairs = zip(targets, predictions, strict=True)
    return {
        "accuracy": _percent([target == prediction for target, prediction in pairs])
    }


def f1(targets, predictions):
    """Returns SQuAD's F1 of words, in percent, of one answer to each question."""
    pairs = zip(targets, predictions, strict=True)
    return {"f1": _percent([word_f1(*map(normalize_answer, pair)) for pair in pairs])}


def bleu(targets, predictions):
    """Returns T5's BLEU."""
    return import_t5("evaluation.metrics").bleu(targets, predictions)


def rouge(targets, predictions):
    """Returns T5's ROUGE-1, ROUGE-2 and ROUGE-L."""
    return import_t5("evaluation.metrics").rouge(targets, predictions)


def per_class(targets, predictions):
    """Returns precision, recall and F1 of each class, and their mean F1, in percent.

    The classes are the targets that occur. A prediction that is none of them is wrong.
    """
    from sklearn.metrics import precision_recall_fscore_support  # 1 s

    classes = sorted(set(targets))
    rates = precision_recall_fscore_support(
        targets, predictions, labels=classes, zero_division=0
    )
    numbers = {
        f"{name}/{label}": 100.0 * float(rate)
        for name, of_classes in zip(("precision", "recall", "f1"), rates, strict=False)
        for label, rate in zip(classes, of_classes, strict=True)
    }
    return numbers | {"macro_f1": 100.0 * float(rates[2].mean())}


# Metrics of texts, under the names that gin files give them.
_FUNCTIONS = (accuracy, bleu, exact_match, f1, per_class, rouge)
METRICS = {function.__name__: function for function in _FUNCTIONS}
OF_T5 = {"bleu", "rouge"}
