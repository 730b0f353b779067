"""Random numbers that follow from the number of an example alone."""

import keras
import tensorflow as tf


class Seeds(keras.random.SeedGenerator):
    """The seeds of one example (or batch), the same whenever it is read.

    Keras' preprocessing layers keep a seed of their own, which counts their calls: an
    iterator that is restored would go on with other numbers. They take any
    `SeedGenerator` in its place, and this one has no state. Its arguments are ints or
    int64 scalars that tell the example from all others.
    """

    def __init__(self, *numbers):
        self._seed = tf.zeros([2], tf.int64)
        for number in numbers:
            self._seed = _fold_in(self._seed, number)
        self._count = 0

    def next(self, ordered=True):
        """Returns int64 [2], another at each call; for `tf.random.stateless_*`."""
        self._count += 1
        return _fold_in(self._seed, self._count)


def _fold_in(seed, number):
    return tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int64))
