"""SQuAD for an `EncoderOnly` with a `SpanHead`: `squad_spans`, `squad_files_spans`.

Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", EMNLP
2016. `squad_spans` is version 1.1 from TensorFlow Datasets, `squad_files_spans` reads
the JSON files of a folder, see `squad_files.py`, and `add_task` registers one's own.

Read them with `ClassifierFeatureConverter`, and score with `decode_fn=best_span`. An
example is a window of a context; the metrics are of questions.
"""

import functools
from typing import NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from remixer_tf.data.spans import cut_span, span_windows
from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.tasks import squad_files
from remixer_tf.tasks.squad_files import read_json, set_directory
from remixer_tf.tasks.t5_tasks import t5

__all__ = ["add_task", "question_source", "read_json", "set_directory"]


class Question(NamedTuple):
    """The target of each window of a question: its id and all right answers."""

    id: str
    answers: list


def add_task(
    name, source, *, max_question_length=64, stride=128, shuffle_buffer_size=8192
):
    """Registers a task of spans.

    The metrics are exact match and F1 in percent, see `squad_scores`.

    Args:
        name: str, of the task.
        source: a `seqio.DataSource` of what `span_windows` reads: TFDS' SQuAD, or a
            `question_source`.
        max_question_length, stride: see `span_windows`.
        shuffle_buffer_size: int, windows. Each checkpoint of a run holds them.
    """
    text = seqio.Feature(byte_vocabulary(extra_ids=3), add_eos=False)
    types = seqio.Feature(seqio.PassThroughVocabulary(2), add_eos=False)
    # Positions: as many as the windows are long, which a task does not know.
    positions = seqio.Feature(seqio.PassThroughVocabulary(None), add_eos=False)
    windows = functools.partial(
        span_windows, max_question_length=max_question_length, stride=stride
    )
    seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[windows],
        output_features={"inputs": text, "token_types": types, "targets": positions},
        postprocess_fn=postprocess,
        metric_fns=[squad_scores],
        shuffle_buffer_size=shuffle_buffer_size,
    )


def question_source(read_rows, splits):
    """A source of questions in memory, in the shape of TFDS' SQuAD.

    Args:
        read_rows: function of a split's name that returns what `read_json` does.
            Called when the split is read.
        splits: names of the splits.
    """

    def dataset_fn(split, shuffle_files=False, seed=None):
        del shuffle_files, seed
        rows = read_rows(split)
        texts = {
            name: tf.constant([row[name] for row in rows], tf.string)
            for name in ("id", "question", "context")
        }
        answers = {
            name: tf.ragged.constant(
                [[answer[name] for answer in row["answers"]] for row in rows],
                dtype=dtype,
                ragged_rank=1,
            )
            for name, dtype in (("text", tf.string), ("answer_start", tf.int32))
        }
        return tf.data.Dataset.from_tensor_slices({**texts, "answers": answers})

    return seqio.FunctionDataSource(dataset_fn, splits)


def postprocess(span, example=None, is_target=False):
    """seqio postprocessor: the text of a predicted span, the `Question` of a target."""
    if is_target:
        answers = [answer.decode() for answer in example["answers"]]
        return Question(example["id"].decode(), answers)
    return cut_span(example, span)


def squad_scores(targets, predictions, aux_values):
    """Exact match and F1 over questions, as SQuAD's script computes them.

    The answer to a question is that of its window with the highest score among those
    that give one. If none does, it is the empty text, which is right where there is no
    answer (SQuAD 2.0).

    Args:
        targets: list of `Question`, one for each window.
        predictions: list of str, "" for none.
        aux_values: dictionary with "scores", a float for each window.

    Returns:
        {"em": float, "f1": float}, in percent.
    """
    best = {}
    for question, text, score in zip(
        targets, predictions, aux_values["scores"], strict=True
    ):
        best.setdefault(question.id, (-np.inf, "", question.answers))
        if text and score > best[question.id][0]:
            best[question.id] = (score, text, question.answers)
    answered = [(answers, text) for _, text, answers in best.values() if answers]
    # t5 knows no questions without an answer.
    empty = [
        100.0 * (t5.evaluation.qa_utils.normalize_squad(text) == "")
        for _, text, answers in best.values()
        if not answers
    ]
    scores = {"em": 0.0, "f1": 0.0}
    if answered:
        scores = t5.evaluation.metrics.squad(*map(list, zip(*answered, strict=True)))
    return {
        name: (value * len(answered) + sum(empty)) / len(best)
        for name, value in scores.items()
    }


add_task(
    "squad_spans",
    seqio.TfdsDataSource("squad/v1.1:3.0.0", splits=["train", "validation"]),
)
add_task(
    "squad_files_spans",
    question_source(squad_files.read_split, list(squad_files.SPLITS)),
)
