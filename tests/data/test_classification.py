"""Texts and pairs of texts with a class: joining, converting, names."""

import io

import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf.analysis.data_report import write_task
from remixer_tf.data.classification import (
    ClassifierFeatureConverter,
    ClassNames,
    join_texts,
)
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.lengths import count_over_length
from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.tasks import classes
from tests.data.toy_tasks import eval_dataset

CLS, SEP = 260, 259
FEATURES = {"inputs": seqio.Feature(byte_vocabulary(extra_ids=3), add_eos=False)}


def join(length, inputs, inputs_b=None):
    example = {"inputs": inputs, "targets": [1]}
    if inputs_b is not None:
        example["inputs_b"] = inputs_b
    dataset = tf.data.Dataset.from_tensors(
        {name: tf.constant(x, tf.int32) for name, x in example.items()}
    )
    (joined,) = join_texts(dataset, FEATURES, {"inputs": length}).as_numpy_iterator()
    assert joined.pop("targets").tolist() == [1]
    assert set(joined) == {"inputs", "token_types"}
    return joined["inputs"].tolist(), joined["token_types"].tolist()


def test_one_text():
    assert join(9, [7, 8]) == ([CLS, 7, 8, SEP], [0] * 4)
    assert join(4, [7, 8, 9]) == ([CLS, 7, 8, SEP], [0] * 4)


@pytest.mark.parametrize(
    "length, kept, kept_b",
    [
        (20, 5, 3),
        (11, 5, 3),
        (10, 4, 3),  # the longer text gives first
        (9, 3, 3),
        (8, 3, 2),
        (7, 2, 2),
    ],
)
def test_pairs(length, kept, kept_b):
    first, second = [11, 12, 13, 14, 15], [21, 22, 23]
    expected = [CLS, *first[:kept], SEP, *second[:kept_b], SEP]
    types = [0] * (kept + 2) + [1] * (kept_b + 1)
    assert join(length, first, second) == (expected, types)


def test_the_second_text_may_be_the_longer():
    assert join(9, [7], list(range(11, 20)))[0] == [CLS, 7, SEP, *range(11, 16), SEP]


def test_class_names():
    names = ClassNames(["no", "yes", "maybe so"])
    assert names.vocab_size == 3
    assert names.encode("maybe so") == [2] and names.decode([2]) == "maybe so"
    assert names.encode_tf(tf.constant("yes")).numpy().tolist() == [1]
    assert names.decode_tf(tf.constant([0])).numpy() == b"no"
    with pytest.raises(tf.errors.InvalidArgumentError, match="A class is one of"):
        names.encode_tf(tf.constant("other"))


def lengths(inputs):
    return {"inputs": inputs, "token_types": inputs, "targets": 1}


def converter(**kwargs):
    row = {"inputs": [98, 7, 97, 9, 97], "token_types": [0, 0, 0, 1, 1], "targets": [0]}
    dataset = tf.data.Dataset.from_tensors(
        {name: tf.constant(x, tf.int32) for name, x in row.items()}
    )
    return ClassifierFeatureConverter(**kwargs)(dataset, lengths(7))


def test_converter():
    (row,) = converter(pack=False).as_numpy_iterator()
    assert {name: x.tolist() for name, x in row.items()} == {
        "encoder_input_tokens": [98, 7, 97, 9, 97, 0, 0],
        "encoder_token_types": [0, 0, 0, 1, 1, 0, 0],
        "labels": [0],
        "label_weights": [1],
    }
    with pytest.raises(ValueError, match="pack"):
        converter(pack=True)


@pytest.fixture(scope="module")
def pairs():
    """A task of pairs that have 7, 5 and 7 tokens with [CLS] and [SEP]."""
    rows = [("a b", "a", "yes"), ("a", "b", "no"), ("c d", "c", "yes")]
    classes.add_task("toy_pairs", lambda split: rows, ["dev"], ["no", "yes"])
    yield seqio.TaskRegistry.get("toy_pairs")
    seqio.TaskRegistry.remove("toy_pairs")


def test_long_pairs_are_counted_before_they_are_trimmed(pairs):
    count = count_over_length(pairs, "dev", lengths(6))
    assert (count.examples, count.over) == (3, 2)
    assert count.longest == lengths(7)
    trimmed = read_examples(pairs, "dev", lengths(6))
    assert [len(example["inputs"]) for example in trimmed] == [6, 5, 6]


@pytest.mark.slow
def test_long_pairs_are_reported(pairs):
    file = io.StringIO()
    write_task(
        pairs,
        file,
        split="dev",
        feature_lengths=lengths(6),
        feature_converter=ClassifierFeatureConverter,
    )
    text = file.getvalue()
    assert "66.67% of the examples are longer than inputs 6" in text
    assert f"FEATURE_LENGTHS = {lengths(8)}\n" in text


def test_rows_that_fill_a_batch_have_no_weight(pairs):
    dataset = eval_dataset(
        pairs,
        split="dev",
        feature_lengths=lengths(8),
        batch_size=2,
        feature_converter=ClassifierFeatureConverter,
    )
    batches = list(dataset.as_numpy_iterator())
    np.testing.assert_array_equal(
        [b["labels"][:, 0] for b in batches], [[1, 0], [1, 1]]
    )
    weights = [b["label_weights"][:, 0] for b in batches]
    np.testing.assert_array_equal(weights, [[1, 1], [1, 0]])
