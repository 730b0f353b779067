"""Data that Keras reads batch by batch: a Dataset, a `PyDataset` or a generator."""

import types

import keras


def first_batch(x, y=None, rows=None):
    """Returns `(x, y, sample_weight)` as far as they are known before the first step.

    They are the specifications of a Dataset, and the first batch of a `PyDataset`.
    Other data are returned as they are.
    """
    if hasattr(x, "element_spec"):
        return keras.utils.unpack_x_y_sample_weight(x.element_spec)
    if isinstance(x, keras.utils.PyDataset):
        return keras.utils.unpack_x_y_sample_weight(x[0])
    return x, y, rows


def checked(x, check):
    """Returns the stream, which calls `check(x, y, sample_weight)` of each batch.

    `check` receives arrays. Other data are returned as they are.
    """

    def checks(batch):
        check(*keras.utils.unpack_x_y_sample_weight(batch))
        return batch

    if isinstance(x, types.GeneratorType):
        return (checks(batch) for batch in x)
    if isinstance(x, keras.utils.PyDataset):
        return _Checked(x, checks)
    if hasattr(x, "element_spec") and hasattr(x, "map"):
        return _checked_dataset(x, checks)
    return x


class _Checked(keras.utils.PyDataset):
    """Another `PyDataset`, whose batches are checked."""

    def __init__(self, data, checks):
        options = "workers", "use_multiprocessing", "max_queue_size"
        super().__init__(**{name: getattr(data, name) for name in options})
        self._data, self._checks = data, checks
        self.on_epoch_begin, self.on_epoch_end = data.on_epoch_begin, data.on_epoch_end

    def __getitem__(self, index):
        return self._checks(self._data[index])

    @property
    def num_batches(self):
        return self._data.num_batches


def _checked_dataset(dataset, checks):
    import tensorflow as tf

    def mapped(*batch):
        values = tf.nest.flatten(batch)

        def call(*arrays):
            checks(tf.nest.pack_sequence_as(batch, arrays))

        with tf.control_dependencies([tf.numpy_function(call, values, [])]):
            return tf.nest.map_structure(tf.identity, batch)

    return dataset.map(mapped)
