"""Tells Keras on JAX how the devices of a mesh share variables and tensors."""

import contextlib
import math
import re
import types

import jax
import keras
from jax.sharding import PartitionSpec


def placed(sharding):
    """Returns a context in which Keras makes variables on their own devices.

    Their values are those of one device, but for the last bit of large variables. Keras
    initialises these in parts, and then needs an `Initializer` and not a function.
    `sharding` is a function of a `keras.Variable` that has a path and a shape, and no
    value yet. It returns a `jax.sharding.NamedSharding`.
    """
    return _distributed(
        types.SimpleNamespace(
            get_variable_layout=sharding,
            get_tensor_layout=lambda path: None,  # The compiler places activations.
        )
    )


def shared(shardings):
    """Returns a context in which tracing a program shares tensors among the devices.

    `shardings` is {expression of a tensor's path: sharding}; {} shares none.
    """
    return _distributed(_Tensors(shardings) if shardings else None)


@contextlib.contextmanager
def _distributed(distribution):
    previous = keras.distribution.distribution()
    keras.distribution.set_distribution(distribution)
    try:
        yield
    finally:
        keras.distribution.set_distribution(previous)


class _Tensors:
    """The distribution of tensors, for Keras."""

    def __init__(self, shardings):
        self._shardings = shardings

    def get_tensor_layout(self, path):
        for expression, sharding in self._shardings.items():
            if re.fullmatch(expression, path):
                return sharding
        return None

    def over_experts(self, path, function, tokens, weights):
        """Computes experts on their devices, for `MoE` at a path.

        `function` takes tokens `[groups, ...]`, weights `[experts, ...]` and the first
        expert that these are of. It returns the sum over these experts, `[groups,
        ...]`; `over_experts` returns the sum over all.

        If one axis splits experts and batch, the devices along it exchange their tokens
        and add up the results. No weights move. Source: GShard, section 3.3, here with
        all tokens in place of a capacity.
        """
        groups = self.get_tensor_layout(f"{path}/groups")
        batch = (*groups.spec, None)[0] or ()
        batch = (batch,) if isinstance(batch, str) else batch
        experts, _ = self.get_tensor_layout(f"{path}/rows_of_experts").spec
        mesh, axes = groups.mesh, {*batch, experts} - {None}
        parts = math.prod(mesh.shape[axis] for axis in batch)
        if not axes or jax.tree.leaves(tokens)[0].shape[0] % parts:
            return function(tokens, weights, 0)

        def of_device(tokens, weights):
            if not experts:
                return function(tokens, weights, 0)
            first = jax.lax.axis_index(experts) * weights[0].shape[0]
            if experts not in batch:
                return jax.lax.psum(function(tokens, weights, first), experts)
            tokens = jax.tree.map(
                lambda x: jax.lax.all_gather(x, experts, tiled=True), tokens
            )
            y = function(tokens, weights, first)
            return jax.lax.psum_scatter(y, experts, tiled=True)

        rows = PartitionSpec(batch or None)
        return jax.shard_map(
            of_device,
            mesh=mesh,
            in_specs=(rows, PartitionSpec(experts)),
            out_specs=rows,
            axis_names=axes,
            check_vma=False,
        )(tokens, weights)
