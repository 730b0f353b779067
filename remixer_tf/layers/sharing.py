"""How the devices of a mesh share what a layer computes, where there is a mesh."""

import keras


def is_shared():
    """Whether Keras has a distribution, which says how devices share tensors."""
    return keras.distribution.distribution() is not None


def share(layer, name, x):
    """Has devices share a tensor as Keras' distribution says of the layer and name.

    Keras itself asks it of layers' outputs, as "<path>/output". Numbers move and keep
    their values. Without a distribution this does nothing.

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

    Args:
        layer: the `MoE`; Keras' distribution is asked for its path.
        function: of `tokens`, `weights` and the first expert that these are of, to an
            array `[groups, ...]`: the sum over the experts of these weights alone.
        tokens: a structure of arrays `[groups, ...]`.
        weights: a list of arrays `[num_experts, ...]`.

    Returns:
        the array, summed over all experts.
    """
    distribution = keras.distribution.distribution()
    return distribution.over_experts(layer.path, function, tokens, weights)
