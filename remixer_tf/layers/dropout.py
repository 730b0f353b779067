"""Dropout whose random state has a stable name, so that it can be restored."""

import contextlib
import contextvars
from collections.abc import Sequence
from typing import Unpack

import keras
from keras import ops

from remixer_tf.arguments import Shape, Tensor
from remixer_tf.errors import UserError, check_range
from remixer_tf.layers.keywords import LayerKeywords

_replica = contextvars.ContextVar("replica", default=None)
_given = contextvars.ContextVar("given", default=({}, {}))


@contextlib.contextmanager
def replica(index):
    """Gives the calls inside the block the dropout masks of one replica.

    Replicas of a model share one random state, and would draw equal masks from it.
    `index` is an int or int32 scalar, the replica's among all. Replica 0 draws what a
    single one does.
    """
    token = _replica.set(index)
    try:
        yield
    finally:
        _replica.reset(token)


@contextlib.contextmanager
def draws_from(states):
    """Lets generators draw from given states inside the block; their own stay.

    A function that is called twice draws the same seeds twice so. `states` maps
    `ReplicaSeedGenerator`s to tensors like their states. It yields how often each has
    drawn, complete after the block.
    """
    counts = dict.fromkeys(states, 0)
    token = _given.set((states, counts))
    try:
        yield counts
    finally:
        _given.reset(token)


class Dropout(keras.layers.Layer):
    """Inverted dropout, one mask shared along the axes named.

    T5 shares its masks over the length axis (Mesh TensorFlow's `noise_shape`), which
    also makes them cheap to draw. `keras.layers.Dropout` names its random state by a
    counter of the process, so a checkpoint of it would not find its place again; here
    the state is part of the layer's path.

    Args:
        rate: float in [0, 1), the share of values dropped.
        shared_axes: axes along which one mask is used.

    Raises:
        ValueError: if the rate lies outside [0, 1).
    """

    def __init__(
        self,
        rate: float,
        shared_axes: Sequence[int] = (),
        **kwargs: Unpack[LayerKeywords],
    ):
        super().__init__(**kwargs)
        check_range("dropout_rate", rate, "a number in [0, 1)", lambda x: 0 <= x < 1)
        if not isinstance(shared_axes, (list, tuple)):
            raise UserError(
                "shared_axes must be a list of axes. Received: "
                f"shared_axes={shared_axes!r:.200}"
            )
        self.rate = rate
        self.shared_axes = tuple(shared_axes)

    def build(self, input_shape: Shape | None = None) -> None:
        if self.rate:
            self.seed_generator = ReplicaSeedGenerator(name="seed_generator")

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        if not (self.rate and training):
            return x
        noise_shape = list(ops.shape(x))
        for axis in self.shared_axes:
            noise_shape[axis] = 1
        return keras.random.dropout(
            x, self.rate, noise_shape=tuple(noise_shape), seed=self.seed_generator
        )


def state_after(state, draws):
    """A seed generator's state after so many draws, an int."""
    return state + ops.convert_to_tensor([0, draws], dtype=state.dtype)


class ReplicaSeedGenerator(keras.random.SeedGenerator):
    """Draws seeds that differ between replicas."""

    def next(self, ordered=True):
        states, counts = _given.get()
        if self in states:
            seed = state_after(states[self], counts[self])
            counts[self] += 1
        else:
            seed = super().next(ordered=ordered)
        if (index := _replica.get()) is None:
            return seed
        # The state counts draws in its second number; its first is the seed itself.
        index = ops.cast(index, seed.dtype)
        return seed + ops.stack([index, ops.zeros_like(index)])
