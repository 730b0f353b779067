"""Types of arguments that a signature declares and `checked` checks.

    @checked
    def __init__(self, d_ff: PositiveInt, rank: PositiveInt | None = None):

Editors and type checkers read them as int, float, str and bool. A type of one's own is
`Annotated[int, check]`, where `check(name, value)` raises a UserError.
"""

import functools
import inspect
import math
import typing
from collections.abc import Callable
from typing import Annotated, Any, TypeVar, cast

from remixer_tf.errors import (
    check_choices,
    check_factories,
    check_flags,
    check_integers,
    check_numbers,
    check_range,
)

F = TypeVar("F", bound=Callable[..., Any])


def integer(minimum):
    """Returns the check of an integer of at least `minimum`."""
    return lambda name, value: check_integers(minimum, **{name: value})


def number(minimum):
    """Returns the check of a number of at least `minimum`."""
    return lambda name, value: check_numbers(minimum, **{name: value})


def within(expected, is_valid):
    """Returns the check of a finite number, see `check_range`."""
    return lambda name, value: check_range(name, value, expected, is_valid)


def one_of(choices):
    """Returns the check of one of these values."""
    return lambda name, value: check_choices(choices, **{name: value})


PositiveInt = Annotated[int, integer(1)]
NonNegativeInt = Annotated[int, integer(0)]
Number = Annotated[float, number(-math.inf)]
NonNegativeFloat = Annotated[float, number(0)]
PositiveFloat = Annotated[float, within("a number above 0", lambda x: x > 0)]
Rate = Annotated[float, within("a number in [0, 1)", lambda x: 0 <= x < 1)]
Factory = Annotated[
    Callable[..., Any], lambda name, value: check_factories(**{name: value})
]


def checked(function: F) -> F:
    """Checks the arguments of each call as the function's signature declares them.

    Only those that are given are checked, before the function runs. bool takes True and
    False alone, and `X | None` takes None too. A dataclass is checked when it is made.

    Examples:
        >>> @checked
        ... def repeat(text: str, times: PositiveInt = 1):
        ...     return text * times
        >>> repeat("ab", times=0)
        Traceback (most recent call last):
        UserError: times must be an integer of at least 1. Received: times=0
    """
    if inspect.isclass(function):
        function.__init__ = checked(function.__init__)
        return function
    signature = inspect.signature(function)
    names = tuple(signature.parameters)
    found = {name: _check(p.annotation) for name, p in signature.parameters.items()}
    checks = {name: check for name, check in found.items() if check}

    @functools.wraps(function)
    def call(*args, **kwargs):
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name in checks:
                checks[name](name, value)
        return function(*args, **kwargs)

    call.__signature__ = signature  # gin and Keras look for no __wrapped__.
    return cast(F, call)


def _check(annotation):
    """Returns the check of a type, a function of a name and a value, or None."""
    if annotation is bool:
        return lambda name, value: check_flags(**{name: value})
    types = typing.get_args(annotation)
    if type(None) in types:
        check = _check(next(kind for kind in types if kind is not type(None)))
        return check and (lambda name, value: value is None or check(name, value))
    return next(filter(callable, getattr(annotation, "__metadata__", ())), None)
