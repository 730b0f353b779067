"""Values of published files, numbers and names, checked one by one.

The files may be a stranger's. Gin text is made of checked values alone, by `gin_text`.
"""

import os
from typing import NamedTuple

from remixer_tf.errors import UserError, shorten

_MOST = 2**31 - 1


class Reference(NamedTuple):
    """A class that gin binds by its name, one of this package's words."""

    name: str


def integer(values, name, default=None, low=1, high=_MOST):
    """Returns the int `values[name]` of a dictionary that was read from JSON.

    `default` stands for a key that is missing or null; None: the key must be there.
    Raises a ValueError if the value is missing, no int, or not from `low` to `high`.
    """
    return _number(values, name, default, low, high, (int,))


def real(values, name, default=None, low=0.0, high=1.0):
    """Returns a float, as `integer` does an int. An int is taken for one."""
    return float(_number(values, name, default, low, high, (int, float)))


def flag(values, name, default):
    """Returns a bool, as `integer` does an int."""
    value = _or_default(values, name, default)
    if not isinstance(value, bool):
        raise UserError(f"{name} must be true or false. Received: {short(value)}")
    return value


def word(values, name, default, known):
    """Returns a str that must be one of `known`, as `integer` does an int."""
    value = _or_default(values, name, default)
    if not isinstance(value, str) or value not in known:
        raise UserError(
            f"{name} must be one of {', '.join(known)}. Received: {short(value)}"
        )
    return value


def check_fields(values, **expected):
    """Raises ValueError if a field is there and has another value than expected."""
    for name, value in expected.items():
        if values.get(name) not in (None, value):
            raise UserError(
                f"{name} must be {value}, as it is here. Received: "
                f"{short(values[name])}"
            )


def reals(values, name, default):
    """Returns a tuple of three floats in [0, 1], for the channels of an image."""
    value = _or_default(values, name, default)
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        raise UserError(f"{name} must be three numbers. Received: {short(value)}")
    return tuple(real({name: x}, name) for x in value)


def gin_text(bindings):
    """Returns bindings as lines of gin text that no value can break out of.

    Names are this package's own words. Values are bool, int, float, str, or tuples of
    them.
    """
    return "".join(f"{name} = {_literal(value)}\n" for name, value in bindings.items())


def shape_of(shapes, name, rank, whose):
    """Returns the shape of an array of published weights.

    Raises a ValueError if the array, which all of `whose` have, is missing, empty or of
    another rank.
    """
    if name not in shapes:
        found = shorten(sorted(shapes))
        raise UserError(f"There is no {name}, which {whose} has. Found: {found}.")
    if len(shapes[name]) != rank or 0 in shapes[name]:
        raise UserError(
            f"{name} must be an array of {rank} axes. Received: {shapes[name]}."
        )
    return shapes[name]


def first_text(*paths):
    """Returns the text of the first file that is there, or ""."""
    for path in filter(os.path.exists, paths):
        with open(path, encoding="utf-8") as file:
            return file.read()
    return ""


def _number(values, name, default, low, high, types):
    value = _or_default(values, name, default)
    ok = isinstance(value, types) and not isinstance(value, bool)
    if not ok or not low <= value <= high:  # False of NaN, too.
        kind = "an integer" if types == (int,) else "a number"
        raise UserError(
            f"{name} must be {kind} from {low} to {high}. Received: {short(value)}"
        )
    return value


def _or_default(values, name, default):
    value = values.get(name)
    if value is None and default is None:
        raise UserError(f"{name} is missing.")
    return default if value is None else value


def short(value):
    """The value as a message shows it, without the rest of a long one."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _literal(value):
    if type(value) is Reference:
        return f"@{value.name}"
    if isinstance(value, tuple):
        return f"({''.join(_literal(x) + ', ' for x in value)})"
    if type(value) not in (bool, int, float, str):  # a subclass may write itself
        raise TypeError(f"gin text is made of plain values. Received: {value!r}")
    return repr(value)
