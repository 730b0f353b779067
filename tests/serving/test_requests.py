"""Requests that an export refuses, in its graph."""

import time

import numpy as np
import pytest
import tensorflow as tf

from remixer_tf.errors import UserError
from remixer_tf.serving.requests import (
    MAX_BYTES,
    Setting,
    batch_calls,
    limit_requests,
)


def test_rows_bytes_and_ids():
    signature = [
        tf.TensorSpec([None], tf.string, name="inputs"),
        tf.TensorSpec([None, 2], tf.int32, name="ids"),
    ]

    @tf.function(input_signature=signature, autograph=False)
    def function(inputs, ids):
        return {"outputs": inputs, "sums": tf.reduce_sum(ids, axis=1)}

    limited = limit_requests(function, max_rows=3, num_ids=10)

    def ask(texts, ids):
        return limited(tf.constant(texts, tf.string), tf.constant(ids, tf.int32))

    answers = ask([b"a", b""], [[0, 9], [3, 4]])
    assert answers["sums"].numpy().tolist() == [9, 7]
    assert len(ask([], np.zeros([0, 2]))["sums"]) == 0
    for texts, ids, message in (
        ([b"a"] * 4, [[1, 1]] * 4, r"at most 3 rows. Rows of inputs:\] \[4\]"),
        ([b"a" * (MAX_BYTES + 1)], [[1, 1]], "at most 2097152 bytes. In inputs:"),
        ([b"a"], [[-5, 1]], r"Ids are 0 to 9. ids has, from and to:\] \[-5\] \[1\]"),
        ([b"a"], [[1, 10]], r"Ids are 0 to 9."),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            ask(texts, ids)


def test_shapes_and_settings():
    number = tf.TensorSpec([None], tf.float32, name="temperature")
    signature = [tf.TensorSpec([None], tf.string, name="inputs"), number]

    @tf.function(input_signature=signature, autograph=False)
    def function(inputs, temperature):
        return {"outputs": tf.strings.join([inputs, tf.strings.as_string(temperature)])}

    settings = [Setting(number, 0.5, 0.0, 2.0)]
    limited = limit_requests(function, settings=settings)
    one_or_each = "temperature must be one number, or one for each text."
    for texts, value in ((["a", "b"], 1.0), (["a", "b"], [1.0]), (["a"], [1.0])):
        outputs = limited(tf.constant(texts), tf.constant(value))["outputs"].numpy()
        assert outputs.tolist() == [f"{x}1.000000".encode() for x in texts]
    for texts, value, message in (
        (
            [["a"]],
            1.0,
            r"inputs must be a list of texts, .batch.. Received a .*rank:. .2",
        ),
        ("a", 1.0, r"inputs must be a list of texts, .batch.. Received a .*rank:. .0"),
        (["a"], [[1.0]], one_or_each),
        (["a", "b", "c"], [1.0, 2.0], one_or_each),
        (["a"], 2.5, "temperature must be 0.0 to 2.0. Received"),
        (["a"], np.nan, "temperature must be 0.0 to 2.0. Received"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            limited(tf.constant(texts), tf.constant(value, tf.float32))


def test_calls_wait_for_others_as_long_as_is_said():
    """A call alone takes as long as it waits for a batch of two to fill up."""
    signature = [tf.TensorSpec([None], tf.float32, name="inputs")]

    @tf.function(input_signature=signature, autograph=False)
    def double(inputs):
        return {"outputs": 2 * inputs}

    seconds = {}
    for wait_ms in (0, 300):
        calls = batch_calls(double, [1, 2], wait_ms=wait_ms, batches_at_once=1)
        for _ in range(2):  # The first one traces.
            start = time.perf_counter()
            assert calls(tf.constant([3.0]))["outputs"].numpy().tolist() == [6.0]
            seconds[wait_ms] = time.perf_counter() - start
    assert seconds[0] < 0.3 <= seconds[300]
    for wrong in ({"wait_ms": -1}, {"wait_ms": 0.5}, {"batches_at_once": 0}):
        with pytest.raises(UserError, match=f"{min(wrong)} must be an integer"):
            batch_calls(double, [1, 2], **wrong)
