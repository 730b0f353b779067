"""Running text in pieces, each after what comes before it."""

import tensorflow as tf


def with_context(dataset, sequence_length):
    """A preprocessor: the tokens before a piece of text become its inputs.

    Each token is a target once. With lengths of 4 for inputs and 2 for targets,

        {"targets": [1, 2]}, {"targets": [3, 4]}, {"targets": [5, 6]}, {"targets": [7]}

    become targets with the inputs [], [1, 2], [1, 2, 3, 4] and [3, 4, 5, 6]. The
    dataset has int32 `[n]` under "targets", in the text's order.
    """

    def advance(before, example):
        text = tf.concat([before, example["targets"]], axis=0)
        start = tf.maximum(tf.size(text) - sequence_length["inputs"], 0)
        return text[start:], {"inputs": before, "targets": example["targets"]}

    return dataset.scan(tf.zeros([0], tf.int32), advance)
