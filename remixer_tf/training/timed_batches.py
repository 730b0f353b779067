"""The batches that a run reads, and whether the model has ids for them."""

import time

import tensorflow as tf

from remixer_tf.data.waiting import awaited, started
from remixer_tf.errors import UserError
from remixer_tf.objectives.batches import check_ids


class TimedBatches:
    """Yields superbatches, and measures how long each takes to read.

    Args:
        data: a `tf.data.Dataset` of superbatches, see `train`.
        engine: the run's `Engine`. `check_ids` compares batches with its model.

    Attributes:
        data, iterator: the data and their iterator.
        first: the first superbatch. `read_first`, after `like_first`, sets it.
        start: float, `time.perf_counter` before the last batch was read.
        waited: float, the seconds that reading the last batch took.
        new_shapes: bool, whether the last batch is the first one of its shapes, so that
            the engine compiles.
    """

    def __init__(self, data, engine):
        self.data, self.iterator = data, iter(data)
        self._engine = engine
        self.first = None
        self._shapes = set()

    def like_first(self):
        """Begins to read the first superbatch in a thread, and returns zeros like it.

        If the shapes of superbatches differ, it waits for the first and returns that.
        """
        self._reading = started(next, self.iterator)
        specs = self.data.element_spec
        if all(spec.shape.is_fully_defined() for spec in specs.values()):
            return {k: tf.zeros(spec.shape, spec.dtype) for k, spec in specs.items()}
        return self.read_first()

    def read_first(self):
        """Returns the first superbatch, checked. It is still yielded first."""
        self.first = awaited(self._reading, "the first batch: the shuffle buffer fills")
        check_ids(self.first, self._engine.model)
        return self.first

    def __iter__(self):
        return self

    def __next__(self):
        self.start = time.perf_counter()
        batch = next(self.iterator) if self._shapes else self.first
        self.waited = time.perf_counter() - self.start
        shapes = tuple(tuple(value.shape) for value in batch.values())
        self.new_shapes = shapes not in self._shapes
        if self.new_shapes:
            check_ids(batch, self._engine.model)
            self._shapes.add(shapes)
        return batch


def check_vocabulary_size(vocabularies, model):
    """Raises ValueError if the model has fewer ids than `describe_vocabularies`'."""
    limit = getattr(model, "vocab_size", None)
    for feature, vocabulary in vocabularies.items():
        if limit is not None and vocabulary["size"] > limit:
            raise UserError(
                f"The vocabulary of {feature} has {vocabulary['size']} ids, and the "
                f"model's vocab_size is {limit}. Set VOCAB_SIZE to "
                f"{-(-vocabulary['size'] // 128) * 128}: all ids, rounded up to a "
                "multiple of 128."
            )
