"""SQuAD for an `EncoderOnly` with a `SpanHead`: `squad_spans`, `squad_files_spans`.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", EMNLP
2016. `squad_spans` is version 1.1 from TensorFlow Datasets, `squad_files_spans` reads
the JSON files of a folder, see `squad_files.py`, and `add_task` registers one's own.

Read them with `SpanFeatureConverter`, and score with `decode_fn=best_span`, which has
BERT's protocol within a window; `squad_scores` has it across the windows of a question.
"""

import functools
import operator
from typing import NamedTuple

import numpy as np
import seqio
from absl import logging

from remixer_tf.data.spans import cut_span, span_windows
from remixer_tf.tasks import squad_files
from remixer_tf.tasks.metrics import normalize_answer, word_f1
from remixer_tf.tasks.rows import byte_features
from remixer_tf.tasks.squad_files import question_source, read_json

__all__ = ["add_task", "question_source", "read_json"]


class Question(NamedTuple):
    """The target of each window of a question: its id and all right answers."""

    id: str
    answers: list


def add_task(
    name, source, *, max_question_length=64, stride=128, shuffle_buffer_size=8192
):
    """Registers a task of spans, whose metrics are `squad_scores`.

    Args:
        name: str, of the task.
        source: a `seqio.DataSource` of what `span_windows` reads: TFDS' SQuAD, or a
            `question_source`.
        max_question_length, stride: see `span_windows`.
        shuffle_buffer_size: int, windows. Each checkpoint of a run holds them.
    """
    windows = functools.partial(
        span_windows, max_question_length=max_question_length, stride=stride
    )
    # Positions: as many as the windows are long, which a task does not know.
    sizes = {"token_types": 2, "answerable": 3, "targets": None}
    seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[windows],
        output_features=byte_features(["inputs"], extra_ids=3, add_eos=False)
        | {
            feature: seqio.Feature(seqio.PassThroughVocabulary(size), add_eos=False)
            for feature, size in sizes.items()
        },
        postprocess_fn=postprocess,
        metric_fns=[squad_scores],
        shuffle_buffer_size=shuffle_buffer_size,
    )


def postprocess(span, example=None, is_target=False):
    """seqio postprocessor: the text of a predicted span, the `Question` of a target."""
    if is_target:
        answers = [answer.decode() for answer in example["answers"]]
        return Question(example["id"].decode(), answers)
    return cut_span(example, span)


class Answer(NamedTuple):
    """What a model says about a question.

    Attributes:
        text: str, the best span of its windows.
        no_answer: float, by how much the logits of no answer exceed the span's.
        threshold: float, there is no answer above it.
        answers: list of str, the right answers.
    """

    text: str
    no_answer: float
    threshold: float
    answers: list

    @property
    def given(self):
        return "" if self.no_answer > self.threshold else self.text


def squad_scores(targets, predictions, aux_values):
    """Exact match and F1 over questions, as SQuAD's scripts compute them.

    By BERT's protocol (Devlin et al. 2018, section 4.3; see `best_span`), a question is
    answered by the best of its windows' spans, or by none, "", if the least of its
    windows' scores of no answer exceeds that by more than the threshold.

    Args:
        targets: list of `Question`, one for each window.
        predictions: list of str, the windows' spans.
        aux_values: dictionary with "scores", `[windows, 3]`, from `best_span`.

    Returns:
        {"em": float, "f1": float}, in percent; of SQuAD 2.0, which has questions
        without an answer, also "best_em" and "best_f1", with the threshold that is best
        for each of them: "best_em_threshold", "best_f1_threshold".
    """
    windows = {}
    for question, text, scores in zip(
        targets, predictions, aux_values["scores"], strict=True
    ):
        windows.setdefault(question.id, []).append((scores, text, question.answers))
    answers = []
    for found in windows.values():
        (best, _, threshold), text, right = max(found, key=lambda window: window[0][0])
        null = min(scores[1] for scores, _, _ in found)
        answers.append(Answer(text, null - best, threshold, right))
    metrics = {
        name: 100 * np.mean([measure(a.given, a.answers) for a in answers])
        for name, measure in MEASURES.items()
    }
    if all(answer.answers for answer in answers):
        return metrics
    if all(answer.threshold == np.inf for answer in answers):
        logging.warning(
            "Some questions have no answer, as in SQuAD 2.0, and best_span answers all:"
            " set best_span.null_threshold, as 0.0."
        )
    for name, measure in MEASURES.items():
        best = _best_threshold(answers, measure)
        metrics[f"best_{name}"], metrics[f"best_{name}_threshold"] = best
    return metrics


def _best_threshold(answers, measure):
    """The score, in percent, with the best threshold for it, and that threshold.

    As SQuAD 2.0's script finds it: from no answer to any question, each answer in turn
    is given, the surest first.
    """
    answers = sorted(answers, key=lambda answer: answer.no_answer)
    total = best = sum(not answer.answers for answer in answers)
    threshold = float(answers[0].no_answer) - 1
    for answer in answers:
        before = not answer.answers
        total += measure(answer.text, answer.answers) - before
        if total > best:
            best, threshold = total, float(answer.no_answer)
    return 100 * best / len(answers), threshold


def _best_of_answers(measure):
    """A measure of a text against the right answers; none is the answer ""."""

    def best(text, answers):
        right = [normalize_answer(answer) for answer in answers or [""]]
        return max(measure(normalize_answer(text), answer) for answer in right)

    return best


MEASURES = {"em": _best_of_answers(operator.eq), "f1": _best_of_answers(word_f1)}


add_task(
    "squad_spans",
    seqio.TfdsDataSource("squad/v1.1:3.0.0", splits=["train", "validation"]),
)
add_task(
    "squad_files_spans",
    question_source(squad_files.read_split, list(squad_files.SPLITS)),
)
