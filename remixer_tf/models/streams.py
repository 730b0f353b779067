"""Data that Keras reads batch by batch: a Dataset, a generator or another."""

import copy
import types
import warnings

import keras

_OF_GRAIN = "MapDataset", "IterDataset", "DataLoader"


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

    Warns:
        UserWarning: the stream's batches cannot be seen.
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
    if _is_of(x, "torch.utils.data", "DataLoader"):
        return _checked_loader(x, checks)
    distributed = "DistributedDataset", "DistributedDatasetsFromFunction"
    if _is_of(x, "tensorflow", *distributed) or _is_of(x, "grain", *_OF_GRAIN):
        warnings.warn(
            f"The ids in a {type(x).__name__} are not compared with the model's "
            "vocab_size or num_classes: an unknown one may give NaN or another row. "
            "The ids of a tf.data.Dataset are, and Keras distributes it, too.",
            stacklevel=5,
        )
    return x


def _is_of(x, module, *names):
    """Whether a class of x has one of the names and comes from a module, as in Keras.

    The library may not be installed, so none is imported.
    """
    kinds = type(x).__mro__
    return any(k.__name__ in names and module in k.__module__ for k in kinds)


def _checked_loader(loader, checks):
    """A copy of a PyTorch loader that compares each batch before it yields it."""
    kind = type(loader)

    def batches(self):
        for batch in kind.__iter__(self):
            # Keras would make a tuple of a dictionary's keys.
            batch = (batch,) if isinstance(batch, dict) else batch
            checks(keras.tree.map_structure(lambda x: x.cpu().numpy(), batch))
            yield batch

    loader = copy.copy(loader)
    loader.__class__ = type(kind.__name__, (kind,), {"__iter__": batches})
    return loader


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
