"""Datasets whose place is a number, so that a checkpoint of it is one as well."""

import tensorflow as tf


class PositionDataset:
    """An endless dataset that starts anywhere.

    A checkpoint of tf.data's own iterator holds all that was read ahead, images here,
    unless an experimental option says otherwise, under which short-lived iterators
    crash the process. Where an element follows from its number, the number is enough.

    Args:
        make: a function `make(start)`, start an int, that returns the
            `tf.data.Dataset` of the elements number start, start + 1, ...
    """

    def __init__(self, make):
        self._make = make
        self._from_zero = make(0)
        self.element_spec = self._from_zero.element_spec

    def read_from(self, start):
        """Returns `make(start)`."""
        return self._make(start) if start else self._from_zero

    def __iter__(self):
        return _Iterator(self)


class _Iterator(tf.Module):
    """Can be saved in `tf.train.Checkpoint(iterator=...)`, and restored at any time."""

    def __init__(self, dataset):
        super().__init__()
        self._dataset = dataset
        with tf.device("CPU"):
            self._position = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._prepared = None  # the position of the element that `_read` gives next

    @property
    def element_spec(self):
        return self._dataset.element_spec

    def __iter__(self):
        return self

    def __next__(self):
        position = int(self._position)
        if position != self._prepared:  # The first element, or restored.
            # The bound method, since a checkpoint would hold the iterator itself.
            self._read = iter(self._dataset.read_from(position)).__next__
        element = self._read()
        self._prepared = position + 1
        self._position.assign(position + 1)
        return element
