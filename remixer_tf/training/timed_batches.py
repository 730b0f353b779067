"""The batches that a run reads, and whether the model has ids for them."""

import time

import tensorflow as tf

from remixer_tf.errors import UserError
from remixer_tf.objectives.batches import check_ids
from remixer_tf.waiting import Waiter

_WHAT = "the next batch: the data are slow, or their source hangs"
_FAST = 0.02  # seconds between batches, for which a thread costs too much


class TimedBatches:
    """Yields superbatches, and measures how long each takes to read.

    Use it as a context manager. A signal ends the wait for a source that hangs, after
    at most 10 s, by a call of `leave`. Where calls take less than 20 ms, a signal waits
    for the batch: to hand it from thread to thread would cost more than 1% of them.

    Args:
        data: a `tf.data.Dataset` of superbatches, see `train`.
        engine: the run's `Engine`. `check_ids` compares batches with its model.
        signal: the run's `StopSignal`.

    Attributes:
        data, iterator: the data and their iterator.
        first: the first superbatch. `read_first`, after `like_first`, sets it.
        leave: a function that ends the run by an error while a read hangs. The loop
            sets it, to save before.
        start: float, `time.perf_counter` before the last batch was read.
        waited: float, the seconds that reading the last batch took.
        new_shapes: bool, whether the last batch is the first one of its shapes, so that
            the engine compiles.
    """

    def __init__(self, data, engine, signal):
        self.data, self.iterator = data, iter(data)
        self._engine, self._signal = engine, signal
        self.leave = lambda: signal.leave("no step was taken yet.")
        self._read = Waiter(self.iterator.__next__, self._leave)
        self._pace = 1.0  # seconds between two batches, of late
        self.first = None
        self._shapes = set()

    def like_first(self):
        """Begins to read the first superbatch in a thread, and returns zeros like it.

        If the shapes of superbatches differ, it waits for the first and returns that.
        """
        self._read.ask()
        specs = self.data.element_spec
        if all(spec.shape.is_fully_defined() for spec in specs.values()):
            return {k: tf.zeros(spec.shape, spec.dtype) for k, spec in specs.items()}
        return self.read_first()

    def read_first(self):
        """Returns the first superbatch, checked. It is still yielded first."""
        if self.first is None:
            what = "the first batch: the shuffle buffer fills"
            self.first = self._read.answer(what)
            check_ids(self.first, self._engine.model)
        return self.first

    def __enter__(self):
        self._read.__enter__()
        return self

    def __exit__(self, *exception):
        self._read.__exit__()

    def _leave(self):
        """Ends the run if a signal came, unless other processes wait for this one."""
        if self._signal.came_alone():
            self.leave()

    def __iter__(self):
        return self

    def __next__(self):
        now = time.perf_counter()
        if self._shapes:
            self._pace += 0.1 * (now - self.start - self._pace)
        self.start = now
        if not self._shapes:
            batch = self.first
        elif self._pace < _FAST:
            batch = next(self.iterator)
        else:
            batch = self._read(_WHAT)
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
