"""tasks/rows.py against seqio's own preprocessors."""

import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.errors import UserError
from remixer_tf.tasks.rows import add_task, append_eos


def test_append_eos_is_seqios():
    vocabulary = byte_vocabulary()
    features = {
        "inputs": seqio.Feature(vocabulary, add_eos=False),
        "targets": seqio.Feature(vocabulary, add_eos=True),
        "choices": seqio.Feature(vocabulary, add_eos=True, rank=2),
    }
    rows = {
        "inputs": [[5, 6], [7, 8]],
        "targets": [[5], [9]],
        "choices": [[[5, 6], [7, 8]], [[9, 9], [5, 5]]],
        "type": ["first", "second"],
    }
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    expected = seqio.preprocessors.append_eos(dataset, features)
    pairs = zip(append_eos(dataset, features), expected, strict=True)
    for ours, theirs in pairs:
        assert ours.keys() == theirs.keys()
        for name in rows:
            np.testing.assert_array_equal(ours[name], theirs[name])
    assert ours["targets"].numpy().tolist() == [9, 1]


def test_a_split_without_rows_names_its_task():
    add_task("task_without_rows", lambda split: [], ("train",), {"": ""}.get)
    try:
        task = seqio.TaskRegistry.get("task_without_rows")
        with pytest.raises(UserError, match="^task_without_rows train has no rows"):
            task.get_dataset(split="train", shuffle=False)
    finally:
        seqio.TaskRegistry.remove("task_without_rows")
