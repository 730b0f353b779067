"""How the devices of a mesh share variables and tensors: what Keras asks on JAX."""

import contextlib
import math
import re

import jax
import keras
from jax.sharding import PartitionSpec


def placed(sharding):
    """Has Keras make variables on the devices that will have them.

    Keras computes a large one in parts, for which it wants an `Initializer` and no
    function. The numbers are those of one device, except the last bit of a large one.

    Args:
        sharding: a function of a `keras.Variable` that has a path and a shape, and no
            value yet. It returns a `jax.sharding.NamedSharding`.

    Returns:
        a context manager.
    """
    return _distributed(_Variables(sharding))


def shared(shardings):
    """Returns a context in which devices share tensors that a program is traced with.

    Of {expression of a tensor's path: sharding}; {} for no distribution.
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


class _Variables:
    """Says to Keras how new variables are shared."""

    def __init__(self, sharding):
        self.get_variable_layout = sharding

    def get_tensor_layout(self, path):
        return None  # Activations are the compiler's.


class _Tensors:
    """Says to Keras how tensors are shared."""

    def __init__(self, shardings):
        self._shardings = shardings

    def get_tensor_layout(self, path):
        for expression, sharding in self._shardings.items():
            if re.fullmatch(expression, path):
                return sharding
        return None

    def over_experts(self, path, function, tokens, weights):
        """What `remixer_tf.layers.sharing.over_experts` asks of a layer's path.

        Where experts and batch are split over the same axis, the devices along it send
        each other their tokens, and add up what comes back (GShard, section 3.3, with
        all tokens in place of a capacity). No weights move.
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
