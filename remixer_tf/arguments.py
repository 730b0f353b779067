"""Types of arguments that a signature declares and `checked` checks.

    @checked
    def __init__(self, d_ff: PositiveInt, rank: PositiveInt | None = None):

Editors and type checkers read them as int, float, str, bool and so on. One's own is
`Annotated[int, check]`, where `check(name, value)` raises a UserError. Several checks
run in order. A dataclass calls `check_fields` in its `__post_init__`.

`Tensor`, `Shape`, `Batch` and `Cache` are for editors and readers: nothing checks them.
"""

import dataclasses
import functools
import inspect
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, TypeVar, cast

from remixer_tf.errors import (
    UserError,
    check_choices,
    check_factories,
    check_flags,
    check_integers,
    check_numbers,
    check_paths,
    check_range,
    is_numpy_bool,
)


class TheRun:
    """Base class of `Run`, and the annotation of an argument that receives the run.

    If a configuration binds no value to such an argument, and the caller gives none, it
    is the configuration's own `Run`.
    """


F = TypeVar("F", bound=Callable[..., Any])
Tensor = Any  # of Keras' backend, or a NumPy array; Keras has no types
Shape = tuple[int | None, ...]
Batch = Mapping[str, Any]  # tensors by their names
Cache = dict[str, Any]  # tensors by their names, or the caches of parts


class Check:
    """A function of a name and a value, with a text that signatures show for it."""

    def __init__(self, text, function):
        self.text = text
        self.function = function

    def __call__(self, name, value):
        self.function(name, value)

    def __repr__(self):
        return self.text


def integer(minimum):
    """Returns the check of an integer of at least `minimum`."""
    return Check(
        f"integer({minimum})",
        lambda name, value: check_integers(minimum, **{name: value}),
    )


def number(minimum):
    """Returns the check of a number of at least `minimum`."""
    return Check(
        f"number({minimum})",
        lambda name, value: check_numbers(minimum, **{name: value}),
    )


def within(expected, is_valid):
    """Returns the check of a finite number, see `check_range`."""
    return Check(
        f"within({expected!r})",
        lambda name, value: check_range(name, value, expected, is_valid),
    )


def one_of(choices):
    """Returns the check of one of these values."""
    return Check(
        f"one_of({choices!r})",
        lambda name, value: check_choices(choices, **{name: value}),
    )


def instance(*kinds):
    """Returns the check of an object of one of these classes."""
    what = " or ".join(kind.__name__ for kind in kinds)

    def check(name, value):
        if not isinstance(value, kinds):
            raise UserError(f"{name} must be a {what}. Received: {name}={value!r:.200}")

    return Check(f"instance({what})", check)


def _check_texts(name, value):
    several = isinstance(value, (list, tuple, set, frozenset))
    if not several or not all(isinstance(text, str) for text in value):
        received = f"{name}={value!r:.200}"
        raise UserError(f"{name} must be a list of str. Received: {received}")


def _check_number_list(name, value):
    several = isinstance(value, (list, tuple)) or getattr(value, "ndim", None) == 1
    for number in value if several else [value]:
        real = isinstance(number, numbers.Real) and not isinstance(number, bool)
        if not (several and real and math.isfinite(number)):
            raise UserError(
                f"{name} must be a list of numbers. Received: {name}={value!r:.200}"
            )


def _check_functions(name, value):
    if not isinstance(value, (list, tuple)) or not all(map(callable, value)):
        raise UserError(
            f"{name} must be a list of functions (in gin: [@NAME, ...], without "
            f"quotes). Received: {name}={value!r:.200}"
        )


Integer = Annotated[int, integer(-math.inf)]
PositiveInt = Annotated[int, integer(1)]
NonNegativeInt = Annotated[int, integer(0)]
Number = Annotated[float, number(-math.inf)]
NonNegativeFloat = Annotated[float, number(0)]
PositiveFloat = Annotated[float, within("a number above 0", lambda x: x > 0)]
Rate = Annotated[float, within("a number in [0, 1)", lambda x: 0 <= x < 1)]
Factory = Annotated[
    Callable[..., Any],
    Check("factory", lambda name, value: check_factories(**{name: value})),
]
Text = Annotated[str, instance(str)]
Texts = Annotated[Collection[str], Check("texts", _check_texts)]
Numbers = Annotated[Sequence[float], Check("numbers", _check_number_list)]
Functions = Annotated[
    Sequence[Callable[..., Any]], Check("functions", _check_functions)
]
Path = Annotated[
    str | os.PathLike, Check("path", lambda name, value: check_paths(**{name: value}))
]


def as_python(value):
    """Returns Python's int, float, bool or str for NumPy's; another value as it is.

    Keras takes no `np.int64` for a size, and gin text and JSON have none.
    """
    if type(value).__module__ != "numpy":
        return value
    is_one = isinstance(value, (numbers.Real, str)) or is_numpy_bool(value)
    return value.item() if is_one else value


def checked(function: F) -> F:
    """Checks the arguments of each call as the function's signature declares them.

    Only those that are given are checked, before the function runs. bool takes True and
    False alone, and `X | None` takes None too. NumPy's numbers are handed on as
    Python's. The first call reads the types, so that one in quotes may be defined
    later.

    Raises a UserError at the first call for a type that cannot be read, and for a union
    of several types of which one has a check.

    Examples:
        >>> @checked
        ... def repeat(text: str, times: PositiveInt = 1):
        ...     return text * times
        >>> repeat("ab", times=0)
        Traceback (most recent call last):
        UserError: times must be an integer of at least 1. Received: times=0
    """
    if inspect.isclass(function):
        raise UserError(
            f"checked takes a function. Let {function.__qualname__} declare its "
            "types in a checked __init__; a dataclass calls check_fields(self) in "
            "its __post_init__."
        )
    signature = inspect.signature(function)
    read = None

    @functools.wraps(function)
    def call(*args, **kwargs):
        nonlocal read
        if read is None:
            read = _argument_checks(function, signature)
        by_position, rest, by_name, others = read
        for (name, check), value in zip(by_position, args, strict=False):
            if check:
                check(name, value)
        if rest:
            for value in args[len(by_position) :]:
                rest(value)
        for name, value in kwargs.items():
            if check := by_name.get(name, others):
                check(name, value)
        kwargs = {name: as_python(value) for name, value in kwargs.items()}
        return function(*map(as_python, args), **kwargs)

    call.__signature__ = signature  # gin and Keras look for no __wrapped__.
    return cast(F, call)


def check_fields(instance: Any) -> None:
    """Checks the fields of a dataclass, those of its subclasses too, by their types.

    Call it in `__post_init__`. A subclass with a `__post_init__` of its own calls
    super's. A field that holds a number of NumPy's gets Python's. Types and errors: see
    `checked`.
    """
    for name, check in _field_checks(type(instance)):
        value = getattr(instance, name)
        check(name, value)
        if (own := as_python(value)) is not value:
            object.__setattr__(instance, name, own)  # It may be frozen.


@functools.cache
def _field_checks(cls):
    """Returns the (name, check) of the fields of a dataclass that declare one."""
    checks = _declared_checks(cls)
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    return [(name, checks[name]) for name in names if checks[name]]


def _argument_checks(function, signature):
    """Returns the checks of a function's arguments; one that has none has None.

    They are a list of (name, check) by position, a function that checks a value of
    `*args`, {name: check} of those that are given by name, and the check of `**kwargs`.
    """
    checks = _declared_checks(function)
    kinds = {}
    for name, parameter in signature.parameters.items():
        kinds.setdefault(parameter.kind, {})[name] = checks.get(name)
    kind = inspect.Parameter
    either = kinds.get(kind.POSITIONAL_OR_KEYWORD, {})
    each = [*kinds.get(kind.POSITIONAL_ONLY, {}).items(), *either.items()]
    ((name, check),) = kinds.get(kind.VAR_POSITIONAL, {"": None}).items()
    rest = check and functools.partial(check, name)
    (others,) = kinds.get(kind.VAR_KEYWORD, {"": None}).values()
    return each, rest, either | kinds.get(kind.KEYWORD_ONLY, {}), others


def _declared_checks(declaring):
    """Returns {name: check or None} of the types that a function or class declares."""
    where = f"{declaring.__module__}.{declaring.__qualname__}"
    try:
        hints = typing.get_type_hints(declaring, include_extras=True)
    except Exception as error:  # what an expression in quotes may raise
        raise UserError(
            f"{where} is checked, and the types that it declares cannot be read: "
            f"{error}. Import them where {declaring.__module__} runs, and not for type "
            "checkers alone."
        ) from error
    return {name: _check(kind, f"{where}: {name}") for name, kind in hints.items()}


def _check(kind, where):
    """Returns the check of a type, a function of a name and a value, or None."""
    if kind is bool:
        return lambda name, value: check_flags(**{name: value})
    if hasattr(kind, "__metadata__"):
        own = _check(kind.__origin__, where)
        # A `Check` is left out of the calls, since there are many.
        found = (x.function if isinstance(x, Check) else x for x in kind.__metadata__)
        checks = [*filter(callable, found), *filter(None, [own])]
        return _in_order(checks) if len(checks) > 1 else next(iter(checks), None)
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return None
    members = typing.get_args(kind)
    checks = [_check(x, where) for x in members if x is not type(None)]
    if len(checks) > 1:
        if any(hasattr(x, "__metadata__") for x in members):
            raise UserError(
                f"{where} is {kind}: which check holds for which value? Write "
                "Annotated[A | B, check], with one check for both."
            )
        return None
    check = checks[0]
    return check and (lambda name, value: value is None or check(name, value))


def _in_order(checks):
    def check(name, value):
        for each in checks:
            each(name, value)

    return check
