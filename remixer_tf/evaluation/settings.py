"""What identifies a result: everything that can change it, as JSON.

Settings are compared for equality: what is left out here lets an old score pass for a
new one, and what varies without need only has a split scored twice. The code itself is
left out: after a change of a metric or a search, remove the run's folder `eval`.
"""

import functools
import hashlib
import types

import keras
import numpy as np

_describers = []


def add_describer(describer):
    """Adds a function that knows more of a callable than its name.

    Args:
        describer: a function of a callable that returns JSON-able data, or None if it
            does not know the callable. The configuration adds gin's bindings.
    """
    _describers.append(describer)


def describe(value):
    """Describes a setting such that equal descriptions mean equal behaviour.

    Args:
        value: numbers, str, None, lists and dictionaries of them; functions, with
            their default arguments and what they enclose, `functools.partial`s and
            bound methods; classes; other objects, by their class and attributes.

    Returns:
        JSON-able data.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(name): describe(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if isinstance(value, functools.partial):
        arguments = [*value.args, value.keywords] if value.args else value.keywords
        return _named(value.func, describe(arguments))
    if isinstance(value, np.ndarray):
        return _hash(value.dtype.str, value.shape, value.tobytes())
    if callable(value) and hasattr(value, "__qualname__"):
        bindings = (describer(value) for describer in _describers)
        return _named(value, next((b for b in bindings if b is not None), None))
    return _named(type(value), describe(_attributes(value)))


def _named(function, arguments):
    """A callable's name, what it holds of its own, and its arguments if it has any."""
    name = f"{function.__module__}.{function.__qualname__}"
    while hasattr(function, "__wrapped__"):  # what a decorator encloses is its own
        function = function.__wrapped__
    parts = {
        "of": getattr(function, "__self__", None),
        "defaults": getattr(function, "__defaults__", None),
        "keyword_defaults": getattr(function, "__kwdefaults__", None),
        "encloses": [
            _simple(cell.cell_contents)
            for cell in getattr(function, "__closure__", None) or ()
        ],
    }
    description = {key: describe(part) for key, part in parts.items() if part}
    if arguments:
        description["arguments"] = arguments
    return {name: description} if description else name


def _attributes(value):
    """An object's own attributes."""
    own = getattr(value, "__dict__", {})
    return {name: _simple(item) for name, item in own.items()}


def _simple(value):
    """A value made of numbers and text; of anything else, the name."""
    if isinstance(value, (bool, int, float, str, list, tuple, dict, type(None))):
        return value
    return getattr(value, "__qualname__", type(value).__qualname__)


def hash_model(model):
    """A hash of what layers a model has and of their numbers, names and functions.

    Two models with the same weights may differ in it, as in what they mask.

    Args:
        model: a built `keras.Model`.

    Returns:
        str.
    """
    layers = []
    for layer in model._flatten_layers():
        attributes = {
            name: getattr(value, "__qualname__", value)
            for name, value in sorted(vars(layer).items())
            if not name.startswith("_")
            and isinstance(value, (bool, int, float, str, types.FunctionType))
        }
        layers.append((layer.path, type(layer).__qualname__, attributes))
    return _hash(layers)


def hash_weights(model, to_numpy=keras.ops.convert_to_numpy):
    """A hash of a model's weights, which tells checkpoints of one step apart.

    Args:
        model: a built `keras.Model`.
        to_numpy: makes a NumPy array of a variable, see `Engine.to_numpy`.

    Returns:
        str.
    """
    digest = hashlib.sha256()
    for weight in model.weights:
        digest.update(weight.path.encode())
        digest.update(np.ascontiguousarray(to_numpy(weight)))
    return digest.hexdigest()[:16]


def hash_examples(examples):
    """A hash of examples, a list of dictionaries of NumPy arrays: str."""
    return _hash(
        [[(k, np.asarray(e[k]).tolist()) for k in sorted(e)] for e in examples]
    )


def _hash(*values):
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]
