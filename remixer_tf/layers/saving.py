"""Keras' saving of layers and models that make their parts by factories."""

import copy
import inspect

import keras
import numpy as np

from remixer_tf.errors import UserError

_PLAIN = (bool, int, float, str, type(None), list, tuple, dict)
_VALUE = "value"  # Where an argument is an object of Keras', such as an initializer.


class Part:
    """A factory from a part's configuration, as Keras serializes it.

    Called, it makes the part anew; arguments replace what the configuration has.
    """

    def __init__(self, serialized):
        self.serialized = serialized

    def __eq__(self, other):
        return isinstance(other, Part) and self.serialized == other.serialized

    __hash__ = None

    def __call__(self, **arguments):
        made = copy.deepcopy(self.serialized)
        made["config"] |= {
            name: keras.saving.serialize_keras_object(value)
            for name, value in arguments.items()
        }
        return keras.saving.deserialize_keras_object(made)


class SavesParts:
    """Mixin for layers and models whose constructor takes factories.

    It stands before Keras' class. `get_config` has each plain argument as it was given,
    and in place of a factory the configuration of the part that it made: the attribute
    of the argument's name, or what `made_parts` says.
    """

    def __new__(cls, *args, **kwargs):
        layer = super().__new__(cls, *args, **kwargs)
        signature = inspect.signature(cls.__init__)
        given = signature.bind(layer, *args, **kwargs)
        given.apply_defaults()
        arguments = dict(given.arguments)
        for name, parameter in signature.parameters.items():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                arguments |= arguments.pop(name)
        del arguments["self"]
        object.__setattr__(layer, "_given", arguments)
        return layer

    def remember(self, **arguments):
        """Puts arguments into `get_config`, for values that a layer gets later.

        Arguments that the constructor does not take are ignored.
        """
        parameters = inspect.signature(type(self).__init__).parameters.values()
        names = {parameter.name for parameter in parameters}
        takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        self._given.update(
            {name: x for name, x in arguments.items() if takes_all or name in names}
        )

    def made_parts(self):
        """{argument: what stands in a configuration for the factory given to it}."""
        return {}

    def get_config(self):
        config = {"name": self.name, "trainable": self.trainable}
        config["dtype"] = keras.saving.serialize_keras_object(self.dtype_policy)
        parts = self.made_parts()
        for name, value in self._given.items():
            if isinstance(value, np.bool_):
                value = bool(value)
            if name in parts:
                config[name] = parts[name]
            elif isinstance(value, _PLAIN):
                config.setdefault(name, value)
            elif isinstance(getattr(self, name, None), keras.layers.Layer):
                config[name] = configuration_of(getattr(self, name))
            else:
                config.setdefault(name, {_VALUE: _serialized(self, name, value)})
        return config

    @classmethod
    def from_config(cls, config):
        dtype = keras.saving.deserialize_keras_object(config["dtype"])
        return cls(**{**_factories(config), "dtype": dtype})


def register(parts):
    """Lets Keras find the layers and models among `parts` when it loads a file."""
    for part in parts:
        if inspect.isclass(part) and issubclass(part, keras.layers.Layer):
            keras.saving.register_keras_serializable("remixer_tf")(part)


def configuration_of(part):
    """A layer's configuration, without the shape it was built for; None for None."""
    if part is None:
        return None
    serialized = keras.saving.serialize_keras_object(part)
    serialized.pop("build_config", None)
    return serialized


def _serialized(layer, name, value):
    try:
        return keras.saving.serialize_keras_object(value)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{type(layer).__name__} cannot be saved: its argument {name} is "
            f"{value!r}. Keep the layer that it makes as the attribute {name}, or give "
            "the class get_config and from_config."
        ) from error


def _factories(value):
    """A configuration with a `Part` for each part in it."""
    if isinstance(value, dict):
        if {*value} == {_VALUE}:
            return keras.saving.deserialize_keras_object(value[_VALUE])
        if "class_name" in value and "config" in value:
            return Part(value)
        return {name: _factories(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_factories(part) for part in value]
    return value
