"""SQuAD for an `EncoderOnly` with a `SpanHead`: `squad_spans`, `squad_files_spans`.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", EMNLP
2016. `squad_spans` is version 1.1 from TensorFlow Datasets. `squad_files_spans` reads
SQuAD's JSON files, version 1.1 or 2.0, which has questions without answers: the split
"train" is train*.json, "validation" is dev*.json, perhaps with .gz. Their folder is
`squad_files.directory` in gin, or REMIXER_TF_SQUAD_DIR. `add_task` registers others.

Read them with `SpanFeatureConverter`, and score with `decode_fn=best_span`, BERT's
protocol within a window; `squad_scores` applies it across the windows of a question.
"""

import functools
import json
import operator
import os
import random
import re
from typing import Annotated, NamedTuple

import numpy as np
import seqio
import tensorflow as tf
from absl import logging

from remixer_tf.arguments import PositiveInt, checked, instance
from remixer_tf.data.spans import cut_span, span_windows
from remixer_tf.errors import MissingFileError, UserError, shorten
from remixer_tf.tasks.cells import is_utf8
from remixer_tf.tasks.folders import DataFolder, read_bytes
from remixer_tf.tasks.rows import byte_features, check_task
from remixer_tf.tasks.text_metrics import Percent, normalize_answer, word_f1

SPLITS = {"train": "train", "validation": "dev"}  # -> how names of files begin
data_folder = DataFolder("squad_files", variable="REMIXER_TF_SQUAD_DIR")


def read_split(split):
    """Returns the rows of "train" or "validation", see `read_json`.

    The file has the rows of train by article; they are shuffled once.
    """
    directory, _ = data_folder.require("SQuAD's JSON files")
    pattern = rf"{SPLITS[split]}.*\.json(\.gz)?"
    names = sorted(os.listdir(directory))
    found = [name for name in names if re.fullmatch(pattern, name)]
    if len(found) != 1:
        raise MissingFileError(
            f"{directory!r} must hold one file {SPLITS[split]}*.json or "
            f"{SPLITS[split]}*.json.gz. Received: {shorten(found) or 'none'}."
        )
    rows = read_json(os.path.join(directory, found[0]))
    if split == "train":
        random.Random(0).shuffle(rows)
    return rows


def read_json(path):
    """Reads a file of SQuAD 1.1 or 2.0, decompressed if its name ends in .gz.

    Returns:
        list of dictionaries, one for each question: "id", "question" and "context",
        str, and "answers", a list of dictionaries with "text" and "answer_start", in
        characters; empty if the context has no answer.
    """
    data = read_bytes(path)
    try:
        rows = [
            _row(question, paragraph["context"])
            for article in json.loads(data)["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{path} is not of SQuAD's format: {error!r}. Expected JSON: data, a "
            "list of articles with paragraphs, each with context and qas."
        ) from error
    if len({row["id"] for row in rows}) < len(rows):
        raise UserError(f"{path}: an id must name one question, some name several.")
    misplaced = [
        row["id"]
        for row in rows
        if not all(_in_place(answer, row["context"]) for answer in row["answers"])
    ]
    if misplaced:
        logging.warning(
            "%s: answers of %s of %s questions do not stand at answer_start, in "
            "characters, of their context (id %s). Training reads what stands there.",
            path,
            f"{len(misplaced):,}",
            f"{len(rows):,}",
            shorten(misplaced),
        )
    return rows


def _row(question, context):
    """A question of `read_json`; a TypeError or ValueError says what is wrong."""
    row = {name: question[name] for name in ("id", "question", "answers")}
    row["context"] = context
    texts = [row["id"], row["question"], context]
    for answer in row["answers"]:
        texts.append(answer["text"])
        if type(answer["answer_start"]) is not int:
            raise TypeError(f"answer_start is {answer['answer_start']!r:.60}")
    for text in texts:
        if not isinstance(text, str) or not is_utf8(text):
            raise TypeError(f"{text!r:.60} is no text")
    return row


def _in_place(answer, context):
    """Whether an answer stands where it says, in characters of its context."""
    start, text = answer["answer_start"], answer["text"]
    return start >= 0 and context.startswith(text, start)


def question_source(read_rows, splits):
    """A source of questions in memory, in the form of TFDS' SQuAD.

    `read_rows` returns for a split's name what `read_json` does, when the split is
    read.
    """

    def dataset_fn(split, shuffle_files=False, seed=None):
        rows = read_rows(split)

        def ragged(name, dtype):
            values = [[answer[name] for answer in row["answers"]] for row in rows]
            return tf.ragged.constant(values, dtype, ragged_rank=1)

        texts = {
            name: tf.constant([row[name] for row in rows], tf.string)
            for name in ("id", "question", "context")
        }
        answers = {
            "text": ragged("text", tf.string),
            "answer_start": ragged("answer_start", tf.int32),
        }
        return tf.data.Dataset.from_tensor_slices({**texts, "answers": answers})

    return seqio.FunctionDataSource(dataset_fn, splits)


class Question(NamedTuple):
    """The target of each window of a question: its id and all right answers."""

    id: str
    answers: list


@checked
def add_task(
    name,
    source: Annotated[seqio.DataSource, instance(seqio.DataSource)],
    *,
    max_question_length: PositiveInt = 64,
    stride: PositiveInt = 128,
    shuffle_buffer_size=8192,
):
    """Registers a task of spans, whose metrics are `squad_scores`.

    The source is one for `span_windows`, which has `max_question_length` and `stride`:
    TFDS' SQuAD, or a `question_source`. Each checkpoint of a run holds
    `shuffle_buffer_size` windows.
    """
    check_task(name, shuffle_buffer_size)
    windows = functools.partial(
        span_windows, max_question_length=max_question_length, stride=stride
    )
    # Targets are positions; the task does not know how many a window has.
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


class _Answer(NamedTuple):
    """A model's answer to a question."""

    text: str  # the best span of its windows
    no_answer: float  # the logits of no answer minus those of the span
    threshold: float  # above it there is no answer
    answers: list  # the right ones

    @property
    def given(self):
        return "" if self.no_answer > self.threshold else self.text


def squad_scores(targets, predictions, aux_values):
    """Exact match and F1 over questions, as SQuAD's scripts compute them, in percent.

    BERT's protocol (Devlin et al. 2018, section 4.3; see `best_span`): the answer is
    the best span of a question's windows. It is none, "", if the lowest score of no
    answer in the windows exceeds the span's by more than the threshold.

    Targets are the `Question`s of all windows, predictions their spans, and
    `aux_values` has "scores", `[windows, 3]`, from `best_span`. Returns {"em": float,
    "f1": float}. If some questions have no answer, as in SQuAD 2.0, also "best_em" and
    "best_f1" at the best threshold for each: "best_em_threshold", "best_f1_threshold".
    Then the rules are those of evaluate-v2.0.py: right answers of which
    `normalize_answer` leaves nothing do not count. Else they are evaluate-v1.1.py's.
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
        answers.append(_Answer(text, null - best, threshold, right))
    of_2 = not all(answer.answers for answer in answers)
    measures = MEASURES_2 if of_2 else MEASURES
    metrics = {
        name: Percent(100 * np.mean([measure(a.given, a.answers) for a in answers]))
        for name, measure in measures.items()
    }
    if not of_2:
        return metrics
    if all(answer.threshold == np.inf for answer in answers):
        logging.warning(
            "Some questions have no answer, as in SQuAD 2.0, and best_span answers all:"
            " set best_span.null_threshold, as 0.0."
        )
    for name, measure in measures.items():
        best = _best_threshold(answers, measure)
        metrics[f"best_{name}"], metrics[f"best_{name}_threshold"] = best
    return metrics


def _best_threshold(answers, measure):
    """The score, in percent, with the best threshold for it, and that threshold."""
    # SQuAD 2.0's script: first no question has an answer, then each answer in turn is
    # given, the surest first.
    answers = sorted(answers, key=lambda answer: answer.no_answer)
    total = best = sum(not answer.answers for answer in answers)
    threshold = float(answers[0].no_answer) - 1
    for answer in answers:
        if answer.answers:
            total += measure(answer.text, answer.answers)
        elif answer.text:
            total -= 1
        if total > best:
            best, threshold = total, float(answer.no_answer)
    return Percent(100 * best / len(answers)), threshold


def _best_of_answers(measure, version_2=False):
    """A measure of a text against the right answers; none is the answer ""."""

    def best(text, answers):
        right = [normalize_answer(answer) for answer in answers]
        if version_2:
            right = [*filter(None, right)] or [""]
        return max(measure(normalize_answer(text), answer) for answer in right)

    return best


def _f1_of_2(text, answer):
    return word_f1(text, answer) if text or answer else 1.0


MEASURES = {"em": _best_of_answers(operator.eq), "f1": _best_of_answers(word_f1)}
MEASURES_2 = {
    "em": _best_of_answers(operator.eq, version_2=True),
    "f1": _best_of_answers(_f1_of_2, version_2=True),
}


add_task(
    "squad_spans",
    seqio.TfdsDataSource("squad/v1.1:3.0.0", splits=["train", "validation"]),
)
add_task("squad_files_spans", question_source(read_split, list(SPLITS)))
