"""Whether it matters to a model how much padding follows its inputs."""


def depends_on_padding(model):
    """Whether a model or a layer in it says `depends_on_padding`, see `Sublayer`."""
    layers = model._flatten_layers()
    return any(getattr(layer, "depends_on_padding", False) for layer in layers)
