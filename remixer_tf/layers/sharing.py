"""How the devices of a mesh share what a layer computes, where there is a mesh."""

import math

import keras


def is_shared():
    """Whether Keras has a distribution, which says how devices share tensors."""
    return keras.distribution.distribution() is not None


def share(layer, name, x):
    """Has devices share a tensor as Keras' distribution says of the layer and name.

    Keras itself asks it of layers' outputs, as "<path>/output". Only where numbers are
    changes, and not what they are. Without a distribution this does nothing.

    Args:
        layer: the built `keras.layers.Layer` that computes x.
        name: str, of the tensor. The distribution is asked for "<path>/<name>".
        x: a tensor.

    Returns:
        x.
    """
    if not is_shared():
        return x
    layout = keras.distribution.distribution().get_tensor_layout(f"{layer.path}/{name}")
    if layout is None:
        return x
    return keras.distribution.distribute_tensor(x, layout)


def over_experts(layer, function, tokens, weights):
    """Has each device compute what its own experts do, for whoever chose them.

    Where experts and batch are split over the same axis, the devices along it send each
    other their tokens, and add up what comes back (GShard, section 3.3, with all tokens
    in place of a capacity). No weights move.

    Args:
        layer: the `MoE`; Keras' distribution is asked for "<path>/groups" and
            "<path>/rows_of_experts".
        function: of `tokens`, `weights` and the first expert that these are of, to an
            array `[groups, ...]`: the sum over the experts of these weights alone.
        tokens: a structure of arrays `[groups, ...]`.
        weights: a list of arrays `[num_experts, ...]`.

    Returns:
        the array, summed over all experts.
    """
    import jax
    from jax.sharding import PartitionSpec

    def layout(name):
        return keras.distribution.distribution().get_tensor_layout(
            f"{layer.path}/{name}"
        )

    mesh, (batch, *_) = layout("groups").mesh, (*layout("groups").spec, None)
    batch = batch if isinstance(batch, tuple | None) else (batch,)
    experts, *_ = layout("rows_of_experts").spec
    axes = {*(batch or ()), *([experts] if experts else ())}
    (groups,) = {x.shape[0] for x in jax.tree.leaves(tokens)}
    if not axes or groups % math.prod(mesh.shape[axis] for axis in batch or ()):
        return function(tokens, weights, 0)

    def part(tokens, weights):
        if not experts:
            return function(tokens, weights, 0)
        first = jax.lax.axis_index(experts) * weights[0].shape[0]
        if experts not in (batch or ()):
            return jax.lax.psum(function(tokens, weights, first), experts)
        tokens = jax.tree.map(
            lambda x: jax.lax.all_gather(x, experts, tiled=True), tokens
        )
        return jax.lax.psum_scatter(
            function(tokens, weights, first), experts, tiled=True
        )

    rows, of_experts = PartitionSpec(batch), PartitionSpec(experts)
    return jax.shard_map(
        part,
        mesh=mesh,
        in_specs=(rows, of_experts),
        out_specs=rows,
        axis_names=axes,
        check_vma=False,
    )(tokens, weights)
