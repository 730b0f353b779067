"""Whether it matters to a model how much padding follows its inputs."""


def depends_on_padding(model):
    """Asks a model and all of its layers for `depends_on_padding`, see `Sublayer`.

    Args:
        model: a `keras.Model`.

    Returns:
        bool, True if one of them says so; those that say nothing do not depend on it.
    """
    layers = model._flatten_layers()
    return any(getattr(layer, "depends_on_padding", False) for layer in layers)
