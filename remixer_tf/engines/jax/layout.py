"""Splits a model's variables over a mesh of devices, and counts a device's memory.

Source: Shazeer et al. 2018, "Mesh-TensorFlow: Deep Learning for Supercomputers",
section 3.
"""

import math
import re
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from remixer_tf.errors import UserError
from remixer_tf.layers.axes import DIMENSIONS, axes_of
from remixer_tf.models.build import build_model, declare
from remixer_tf.optimizers.options import make_optimizer


class Layout:
    """A mesh of devices, and the rules that split tensors over it.

    ":" separates a name from its size or axis; any of " ,.;" separates pairs. Each
    device holds the whole of a dimension that has no rule, or whose axis the mesh does
    not have. Only "batch" may have several rules: it is split over all their axes.

    With "d_model:data" and "batch:data" every device keeps a part of each matrix
    (ZeRO's third stage). The engine holds the outputs of blocks to `batch_axes`, so
    that the compiler gathers the matrices for each product. Otherwise it would split
    the products, and lose the data parallelism.

    Args:
        mesh_shape: str, sizes of the mesh's axes, such as "data:4,model:2". "" is one
            device.
        layout_rules: str, such as "batch:data,d_ff:model,heads:model,vocab:model", with
            the dimensions of `remixer_tf.layers.axes.DIMENSIONS`.

    Attributes:
        axes: dictionary {axis: size} of ints, in the mesh's order.
        num_devices: int, the product of the sizes.
        batch_axes: tuple of str, the axes that split a batch.
        num_batch_parts: int, the product of the sizes of `batch_axes`.

    Raises:
        ValueError: malformed text, a repeated axis or rule, a size that is no positive
            integer, an unknown dimension, or an axis of several devices that splits
            nothing.
    """

    def __init__(self, mesh_shape="", layout_rules=""):
        received = f"Received: {mesh_shape=}, {layout_rules=}"
        self.axes, rules = {}, {}  # rules: dimension -> axes
        for axis, size in _pairs("mesh_shape", mesh_shape, "data:4,model:2"):
            if not re.fullmatch("[1-9][0-9]*", size):
                raise UserError(
                    "The size of a mesh axis is a positive integer. Received: "
                    f"{axis}:{size} in mesh_shape={mesh_shape!r}"
                )
            if axis in self.axes:
                raise UserError(f"mesh_shape has the axis {axis!r} twice. {received}")
            self.axes[axis] = int(size)
        for name, axis in _pairs("layout_rules", layout_rules, "batch:data,d_ff:model"):
            if name not in DIMENSIONS:
                raise UserError(
                    f"layout_rules name a dimension {name!r}, which no tensor has. "
                    f"There are: {', '.join(DIMENSIONS)}. {received}"
                )
            if axis in rules.get(name, ()) or (name in rules and name != "batch"):
                raise UserError(
                    f"layout_rules have two rules for {name!r}; one axis can split it. "
                    f"{received}"
                )
            rules.setdefault(name, []).append(axis)
        rules = {n: [a for a in axes if a in self.axes] for n, axes in rules.items()}
        self.num_devices = math.prod(self.axes.values())
        self.batch_axes = tuple(rules.pop("batch", ()))
        self.num_batch_parts = math.prod(self.axes[axis] for axis in self.batch_axes)
        self._axis_of = {name: axes[0] for name, axes in rules.items() if axes}
        self._check_used({*self.batch_axes, *self._axis_of.values()}, received)

    def _check_used(self, used, more):
        """Raises ValueError if an axis of several devices is not in `used`."""
        for axis, size in self.axes.items():
            if size > 1 and axis not in used:
                raise UserError(
                    f"The mesh axis {axis!r} of {size} devices splits nothing: each of "
                    f"them would do the same. Add a rule such as batch:{axis}, or "
                    f"leave out the axis. {more}"
                )

    def axis(self, dimension):
        """Returns the mesh axis that splits a dimension other than "batch", or None."""
        return self._axis_of.get(dimension)

    def partition(self, variable, num_heads=None):
        """Returns the mesh axis, or None, that splits each dimension of a variable.

        `num_heads` heads in a dimension `num_heads * d_kv` are kept whole. Raises a
        ValueError if an axis does not divide a dimension, or would split two of them.
        """
        path, names = variable.path, axes_of(variable)
        partition = tuple(self._axis_of.get(name) for name in names)
        for name, size, axis in zip(names, variable.shape, partition, strict=True):
            if axis is None:
                continue
            if name == "heads" and num_heads is not None:
                size = num_heads
            if size % self.axes[axis]:
                raise UserError(
                    f"The rule {name}:{axis} splits {name}={size} of {path} over "
                    f"{self.axes[axis]} devices, which do not divide it. Choose "
                    "another size in mesh_shape, or leave out the rule."
                )
            if partition.count(axis) > 1:
                both = [n for n, a in zip(names, partition, strict=True) if a == axis]
                raise UserError(
                    f"The rules {' and '.join(f'{n}:{axis}' for n in both)} split two "
                    f"dimensions of {path} over one mesh axis. Give one of them "
                    "another axis, or leave it out."
                )
        return partition

    def partitions(self, model):
        """Returns {path: `partition`} of all variables of a built Keras model.

        Raises:
            ValueError: see `partition`; or an axis splits none of them, nor the batch.
        """
        num_heads = {}
        for layer in model._flatten_layers(include_self=False):
            if hasattr(layer, "num_heads") and hasattr(layer, "d_kv"):
                num_heads |= {v.path: layer.num_heads for v in layer.variables}
        partitions = {
            v.path: self.partition(v, num_heads.get(v.path)) for v in model.variables
        }
        used = {*self.batch_axes, *(a for axes in partitions.values() for a in axes)}
        rules = ", ".join(f"{name}:{axis}" for name, axis in self._axis_of.items())
        more = f"The rules are {rules}, and this model's variables lack the dimension."
        self._check_used(used, more)
        return partitions

    def slot_partition(self, model):
        """Returns the `partition` of an optimizer's variables, as a function of one.

        A slot is split as its variable. If their shapes differ, the slot has names of
        its own, as the rows and columns of `Adafactor` (`make_named`).
        """
        if not self._axis_of:
            return lambda slot: (None,) * len(slot.shape)
        partitions = self.partitions(model)
        # Keras names a slot after its variable: "<path with _ for />_<slot>".
        owners = {v.path.replace("/", "_"): v for v in model.trainable_variables}

        def of_slot(slot):
            name = slot.path.rpartition("/")[2]
            # "..._wi_0_momentum" belongs to "..._wi_0" and not to "..._wi".
            own = [owner for owner in owners if name.startswith(f"{owner}_")]
            owner = owners[max(own, key=len)] if own else None
            if owner is not None and tuple(slot.shape) == tuple(owner.shape):
                return partitions[owner.path]
            return self.partition(slot)

        return of_slot


def _pairs(argument, text, example):
    """Yields the pairs of "a:b,c:d"."""
    if not isinstance(text, str):
        raise UserError(f"{argument} is a text such as {example!r}. Received: {text!r}")
    for pair in re.findall(r"[^\s,.;]+", text):
        names = pair.split(":")
        if len(names) != 2 or not all(re.fullmatch(r"\w+", name) for name in names):
            raise UserError(
                f"{argument} is a list of pairs such as {example!r}. Received: "
                f"{pair!r} in {argument}={text!r}"
            )
        yield names


class DeviceMemory(NamedTuple):
    """Bytes on each device, without activations."""

    weights: int  # the model's variables
    gradients: int  # all at once
    optimizer: int  # the optimizer's variables


def device_memory(layout, model, optimizer):
    """Returns the `DeviceMemory` of a built or declared model and optimizer."""
    partitions = layout.partitions(model)

    def count(variables, partition):
        total = 0
        for v in variables:
            parts = math.prod(layout.axes[axis] for axis in partition(v) if axis)
            total += math.prod(v.shape) * np.dtype(v.dtype).itemsize // parts
        return total

    return DeviceMemory(
        weights=count(model.variables, lambda v: partitions[v.path]),
        gradients=count(model.trainable_variables, lambda v: partitions[v.path]),
        optimizer=count(optimizer.variables, layout.slot_partition(model)),
    )


def leave_accelerators():
    """Leaves GPUs and TPUs to other processes, before this one has used them.

    It may declare models, and reads files.
    """
    tf.config.set_visible_devices([], "GPU")
    if keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_platforms", "cpu")


def declare_run(model, optimizer, dtype_policy):
    """Builds a model and its optimizer, see `Engine.build`, without values."""
    if keras.backend.backend() == "tensorflow":
        with tf.Graph().as_default():  # Variables of a graph have no memory.
            model = build_model(model, dtype_policy)
            optimizer = make_optimizer(optimizer)
            optimizer.build(model.trainable_variables)
        return model, optimizer
    model = declare(lambda: build_model(model, dtype_policy))
    # Its step and rate are numbers, and not declared.
    optimizer = make_optimizer(optimizer)
    declare(lambda: optimizer.build(model.trainable_variables))
    return model, optimizer
