"""The batches that a run reads."""

import time

from remixer_tf.training.checks import check_ids


class TimedBatches:
    """Yields superbatches, and measures how long each takes to read.

    Args:
        data: a `tf.data.Dataset` of superbatches, see `train`.
        engine: the run's `Engine`. Batches of new shapes are checked against its model,
            see `check_ids`.

    Attributes:
        data: see above.
        iterator: the iterator of the data.
        first: the first superbatch, once `read_first` was called.
        start: float, `time.perf_counter` before the last batch was read.
        waited: float, the seconds that reading it took.
        new_shapes: bool, whether no batch before it had its shapes. The engine traces
            and compiles its steps then.
    """

    def __init__(self, data, engine):
        self.data = data
        self.iterator = iter(data)
        self._engine = engine
        self.first = None
        self._shapes = set()

    def read_first(self):
        """Returns the first superbatch, checked. It is still the first one yielded."""
        self.first = next(self.iterator)
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
