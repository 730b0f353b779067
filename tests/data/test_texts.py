"""Texts that are no UTF-8, and targets that a vocabulary does not give back."""

import io
import json
import logging
import warnings

import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf.analysis.data_report import write_task
from remixer_tf.data.codec import Codec
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.lengths import count_over_length
from remixer_tf.data.pipeline import (
    Batching,
    allowed_answers,
    get_task,
    train_dataset,
)
from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.data.vocabulary_training import read_texts, train_vocabulary
from remixer_tf.errors import UserError
from remixer_tf.evaluation.decoded import DecodedEvaluation, DecodedExamples
from remixer_tf.evaluation.splits import TaskSplit
from remixer_tf.evaluation.task_metrics import list_predictions
from remixer_tf.loaded.searches import allowed_ids
from remixer_tf.tasks.tables import table_task

LENGTHS = {"inputs": 8, "targets": 8}
# By SentencePiece's documentation: several blanks are one, none is at an end, and
# characters have their NFKC form.
CHANGED = {
    "yes ": "yes", " yes": "yes", "yes  no": "yes no", "yes\nno": "yes no",
    "yes\tno": "yes no", "\ufb01": "fi", "no\u3000yes": "no yes", "maybe": " \u2047 ",
}  # fmt: skip
KEPT = ["yes", "no", "yes no", "fi"]


@pytest.fixture
def task(tmp_path):
    path = str(tmp_path / "words.model")
    vocabulary = train_vocabulary(["yes no fi q"] * 9, path, model_type="word")
    for split in ("train", "dev"):
        rows = [{"q": f"{split}{i}", "a": x} for i, x in enumerate([*KEPT, *CHANGED])]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = {x: str(tmp_path / f"{x}.jsonl") for x in ("train", "dev")}
    return get_task(table_task(files, "{q}", "{a}", name="t"), vocabulary)


def test_targets_that_do_not_come_back_are_counted(task, caplog):
    """Before training, and at an evaluation that decodes."""

    def report(split, first="'yes ' becomes 'yes', ' yes' becomes 'yes'"):
        words = f"t {split}: the vocabulary changes 8 of the first 12 targets"
        return words in caplog.text and first in caplog.text

    with caplog.at_level(logging.WARNING, "absl"):
        train_dataset(task, LENGTHS, Batching(2))
        assert report("train") and not report("dev")
        evaluation = DecodedEvaluation(task, feature_lengths=LENGTHS, splits=["dev"])
        evaluation.count_over_length(("t", "dev"))
    assert report("dev")


def test_allowed_answers_that_do_not_come_back_are_told(task, caplog):
    """In gin by `allowed_answers`, and in Python by `generate(allowed=...)`."""
    changes = "changes 2 of 3 allowed answers: 'yes ' becomes 'yes', 'maybe' becomes"
    answers = ["yes ", "no", "maybe"]
    ids = allowed_answers(answers, task)
    assert changes in caplog.text
    with pytest.warns(UserWarning, match=changes):
        assert allowed_ids(answers, Codec(task, LENGTHS)) == ids
    with warnings.catch_warnings(action="error"):
        assert allowed_ids(["no", [5]], Codec(task, LENGTHS)) == [ids[1], [5]]
    for wrong in ("yes", [None], None):
        with pytest.raises(UserError, match="strings must be a list of str"):
            allowed_answers(wrong, task)


@pytest.mark.slow
def test_a_report_counts_them_too(task):
    file = io.StringIO()
    write_task(task, file, feature_lengths=LENGTHS)
    assert "t train: the vocabulary changes 8 of the first 12" in file.getvalue()


def test_no_warning_where_all_comes_back(task):
    bytes_task = get_task(task, byte_vocabulary())
    assert count_over_length(bytes_task, "train", LENGTHS).changes == ()


def lines_task(path, pair=lambda x: {"inputs": x, "targets": x}):
    def pairs(dataset):
        return dataset.map(pair)

    feature = seqio.Feature(byte_vocabulary())
    return seqio.Task(
        "mine",
        source=seqio.TextLineDataSource({"train": str(path)}),
        preprocessors=[pairs, seqio.preprocessors.tokenize],
        output_features={"inputs": feature, "targets": feature},
    )


@pytest.mark.parametrize(
    "read",
    [
        lambda task: read_texts(task),
        lambda task: read_examples(task, "train", LENGTHS),
        lambda task: train_dataset(task, LENGTHS, Batching(1)),
    ],
)
def test_a_line_in_latin_1_is_named(tmp_path, read):
    path = tmp_path / "a.txt"
    path.write_bytes("a\nb\ncafé\n".encode("latin-1"))
    with pytest.raises(
        UserError, match=f"mine train, {path}, line 3: a text is not UTF-8"
    ):
        read(lines_task(path))


def test_inputs_of_pieces_are_checked_and_those_of_bytes_are_not(tmp_path):
    """A byte vocabulary has ids for any bytes, and pieces would be unknown."""
    path = tmp_path / "a.txt"
    path.write_bytes("a\ncafé\n".encode("latin-1"))
    of_bytes = lines_task(path, lambda x: {"inputs": x, "targets": "a"})
    assert count_over_length(of_bytes, "train", LENGTHS).examples == 2
    file = str(tmp_path / "words.model")
    task = get_task(of_bytes, train_vocabulary(["a b"] * 9, file, model_type="word"))
    with pytest.raises(UserError, match=f"mine train, {path}, line 2: .* not UTF-8"):
        count_over_length(task, "train", LENGTHS)


EXTRAS = {  # features of three examples, and what predictions.jsonl has of `idx`
    "text": (["a", "é", "c"], ["a", "é", "c"]),
    "number": ([1, 2, 3], [1, 2, 3]),
    "share": ([0.5, 1.5, 2.5], [0.5, 1.5, 2.5]),
    "flag": ([True, False, True], [True, False, True]),
    "vectors": (tf.ragged.constant([[1], [], [1, 2]]), None),
    "texts": (tf.ragged.constant([["a"], [], ["b", "c"]]), None),
    "matrix": (np.ones([3, 2, 2]), None),
}


@pytest.mark.parametrize("line", ["text", "vectors"])
def test_extra_features_of_any_kind(line):
    """`idx`, `line` and others may be texts, numbers or vectors of any length."""

    def read(split, shuffle_files=False, seed=None):
        texts = tf.constant(["a", "b", "c"])
        columns = dict.fromkeys(("inputs", "targets"), texts)
        columns |= {f"idx/{name}": values for name, (values, _) in EXTRAS.items()}
        columns["line"] = EXTRAS[line][0]
        return tf.data.Dataset.from_tensor_slices(columns)

    feature = seqio.Feature(byte_vocabulary())
    task = seqio.Task(
        "mine",
        source=seqio.FunctionDataSource(read, ["train"]),
        preprocessors=[seqio.preprocessors.tokenize],
        output_features={"inputs": feature, "targets": feature},
    )
    count = count_over_length(task, "train", {"inputs": 0, "targets": 0})
    lines = {"text": ("line a", "line é", "line c")}
    assert count.first == lines.get(line, ("example 1", "example 2", "example 3"))
    short = {"inputs": 1, "targets": 1}
    batch = next(iter(train_dataset(task, short, Batching(1, shuffle=False))))
    assert batch["decoder_target_tokens"].numpy().tolist() == [[[100]]]
    split = TaskSplit(task, "train", short)
    assert len(split.hash) == 16
    tokens = np.array([[100], [101], [102]])
    records = list_predictions(task, split.examples, DecodedExamples(tokens, None))
    for i, record in enumerate(json.loads(json.dumps([*records]))):
        known = {name: values[i] for name, (_, values) in EXTRAS.items() if values}
        assert record["idx"] == known and record["exact_match"]
