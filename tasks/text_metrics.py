"""Metrics of texts by name, and exact match by the type of example.

seqio gives a metric the postprocessed targets and predictions and nothing else, so
`postprocess` stores the type of the example with the text of its target.
"""

import collections
import operator
import re
import string
from typing import NamedTuple

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

    SQuAD's scripts compare answers in this form (Rajpurkar et al. 2016, section 6.1).
    """
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return normalize_whitespace(re.sub(r"\b(a|an|the)\b", " ", text))


def word_f1(text, answer):
    """Returns the F1 of the words of two texts, in [0, 1]; 0 if they share none."""
    text, answer = text.split(), answer.split()
    common = (collections.Counter(text) & collections.Counter(answer)).total()
    return 2 * common / (len(text) + len(answer)) if common else 0.0


def postprocess(text, example=None, is_target=False):
    """seqio postprocessor: text with whitespace normalised.

    A target becomes a `TargetWithType`, from the bytes 'type' of its example.
    """
    text = normalize_whitespace(text)
    return TargetWithType(text, example["type"].decode()) if is_target else text


class Percent(float):
    """A value of a metric from 0 to 100. Tables of results show its `unit`."""

    unit = "%"


def percentages(hits):
    """Returns {name: percentage of True}, sorted, from pairs (name, bool)."""
    found = collections.defaultdict(list)
    for name, hit in hits:
        found[name].append(hit)
    return {name: Percent(100 * sum(x) / len(x)) for name, x in sorted(found.items())}


def exact_match_by_type(kind_of_type):
    """Makes a metric: the percentage of predictions equal to their targets.

    `kind_of_type` maps types to kinds, as "lexical". The metric is a function of
    `TargetWithType`s and str and returns `exact_match`, `exact_match/KIND` and
    `exact_match/type/TYPE`.
    """

    def exact_match(targets, predictions):
        hits = []
        for target, prediction in zip(targets, predictions, strict=True):
            names = ["exact_match", f"exact_match/type/{target.type}"]
            if target.type in kind_of_type:
                names.append(f"exact_match/{kind_of_type[target.type]}")
            hits += [(name, target.text == prediction) for name in names]
        return percentages(hits)

    return exact_match


def _percentage(name, measure, targets, predictions, form=lambda text: text):
    pairs = zip(map(form, targets), map(form, predictions), strict=True)
    return percentages((name, measure(*pair)) for pair in pairs)


def exact_match(targets, predictions):
    """Returns the percentage of predictions that equal their target but for blanks."""
    equal = operator.eq
    return _percentage("exact_match", equal, targets, predictions, normalize_whitespace)


def accuracy(targets, predictions):
    """Returns the percentage of predictions that equal their target."""
    return _percentage("accuracy", operator.eq, targets, predictions)


def f1(targets, predictions):
    """Returns SQuAD's F1 of words, in percent, of one answer to each question.

    SQuAD's script gives equal answers 0 if `normalize_answer` leaves nothing of them,
    as of "+". Here they have 100, and other such pairs 0.
    """

    def measure(target, prediction):
        if normalize_whitespace(target) == normalize_whitespace(prediction):
            return 1.0
        return word_f1(normalize_answer(target), normalize_answer(prediction))

    return _percentage("f1", measure, targets, predictions)


def bleu(targets, predictions):
    """Returns T5's BLEU, from 0 to 100."""
    return _of_t5("bleu", targets, predictions)


def rouge(targets, predictions):
    """Returns T5's ROUGE-1, ROUGE-2 and ROUGE-L, from 0 to 100."""
    return _of_t5("rouge", targets, predictions)


def _of_t5(name, targets, predictions):
    found = getattr(import_t5("evaluation.metrics"), name)(targets, predictions)
    return {name: Percent(value) for name, value in found.items()}


def per_class(targets, predictions):
    """Returns precision, recall and F1 of each class, and their mean F1, in percent.

    The classes are those of the targets; other predictions are wrong.
    """
    from sklearn.metrics import precision_recall_fscore_support  # 1 s

    classes = sorted(set(targets))
    rates = precision_recall_fscore_support(
        targets, predictions, labels=classes, zero_division=0
    )
    numbers = {
        f"{name}/{label}": Percent(100 * rate)
        for name, of_classes in zip(("precision", "recall", "f1"), rates, strict=False)
        for label, rate in zip(classes, of_classes, strict=True)
    }
    return numbers | {"macro_f1": Percent(100 * rates[2].mean())}


# Metrics of texts, under the names that gin files give them.
_FUNCTIONS = (accuracy, bleu, exact_match, f1, per_class, rouge)
METRICS = {function.__name__: function for function in _FUNCTIONS}
OF_T5 = {"bleu", "rouge"}
