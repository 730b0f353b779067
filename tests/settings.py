"""Values and parts of a `Configuration`, by the names that gin text has for them."""

from remixer_tf.configuration import Bound, parts
from remixer_tf.configuration.bindings import Name


def value_of(settings, name, default=None):
    """The value that the parameter `name`, such as "Run.model", would receive."""
    owner, _, parameter = name.rpartition(".")
    values = settings.written("", parts.find(owner).selector)
    return settings.resolve(values[parameter]) if parameter in values else default


def part_of(settings, name):
    """The `Bound` part of a name, such as "Run"."""
    return Bound(settings, parts.find(name).selector)


def arguments_of(settings, name):
    """What the settings bind to the arguments of the part that `name` is bound to."""
    bound = value_of(settings, name)
    return bound.arguments() if bound else {}


def macro_of(settings, name):
    """The value of a macro."""
    return settings.resolve(Name(f"%{name}"))
