"""How gin lays a run out on a mesh of devices."""

from remixer_tf.configuration.gin_files import get_value
from remixer_tf.engines.jax.layout import Layout


def configured_layout():
    """Returns the `Layout` that gin gives the `JaxEngine`."""
    names = ("mesh_shape", "layout_rules")
    return Layout(**{name: get_value(f"JaxEngine.{name}", "") for name in names})
