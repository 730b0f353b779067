"""The memory that a run takes on each device of a mesh, before it is made."""

import math
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from remixer_tf.models.build import build_model, declare


class DeviceMemory(NamedTuple):
    """Bytes on each device, without activations.

    Attributes:
        weights: int, the model's variables.
        gradients: int, all gradients at once.
        optimizer: int, the optimizer's variables.
    """

    weights: int
    gradients: int
    optimizer: int

    def __str__(self):
        parts = (f"{n / 1e9:.2f} GB of {name}" for name, n in self._asdict().items())
        return f"{', '.join(parts)}, {sum(self) / 1e9:.2f} GB together"


def device_memory(layout, model, optimizer):
    """Returns the `DeviceMemory` of a built or declared model and optimizer.

    Raises:
        ValueError: the layout does not fit, see `Layout.partitions`.
    """
    partitions = layout.partitions(model)

    def count(variables):
        return sum(_bytes(v, partitions[v.path], layout) for v in variables)

    of_slot = layout.slot_partition(model)
    return DeviceMemory(
        weights=count(model.variables),
        gradients=count(model.trainable_variables),
        optimizer=sum(_bytes(v, of_slot(v), layout) for v in optimizer.variables),
    )


def declare_run(model, optimizer, dtype_policy):
    """Builds a model and its optimizer, with variables that have no values.

    See `Engine.build` for the arguments.
    """
    if keras.backend.backend() == "tensorflow":
        with tf.Graph().as_default():  # Variables of a graph have no memory.
            model = build_model(model, dtype_policy)
            optimizer = optimizer()
            optimizer.build(model.trainable_variables)
        return model, optimizer
    model = declare(lambda: build_model(model, dtype_policy))
    optimizer = optimizer()  # Its step and rate are numbers, and not declared.
    declare(lambda: optimizer.build(model.trainable_variables))
    return model, optimizer


def _bytes(variable, partition, layout):
    parts = math.prod(layout.axes[axis] for axis in partition if axis)
    itemsize = np.dtype(variable.dtype).itemsize
    return math.prod(variable.shape) * itemsize // parts
