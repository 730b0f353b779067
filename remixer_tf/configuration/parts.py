"""The parts that gin text may name: functions and classes, ours and users'."""

import functools
import importlib
import inspect
import re
import threading
import typing

import gin

from remixer_tf.configuration.bindings import last
from remixer_tf.configuration.configurables import configurables
from remixer_tf.data.late_tasks import register_waiting
from remixer_tf.errors import UserError, nearest

# Gin's own table of parts, {whole name: entry}. Users add to it by `@gin.register`.
_registry = gin.config._REGISTRY


_found = {}  # what `register_configurables` returns
_registering = threading.Lock()


def register_configurables():
    """Registers with gin all that it may configure; returns {part: whole name}."""
    with _registering:
        if not _found:
            importlib.import_module("remixer_tf.tasks")  # They register, too.
            parts = [*configurables()]
            for module, name, value in parts:
                denied = getattr(value, "not_in_gin", None)
                gin.external_configurable(value, name, module, denylist=denied)
            _found.update({value: f"{module}.{name}" for module, name, value in parts})
    return _found


def find(name, place=""):
    """Returns gin's entry of a part: its `selector`, the whole name, and `wrapped`.

    Raises a UserError if the name is unknown, or is that of several parts.
    """
    reason = ""
    try:
        if not _registry.matching_selectors(name):
            register_waiting()
    except ImportError as missing:
        reason = f" If the name is one of t5's: {missing}"
    found = _registry.matching_selectors(name)
    if len(found) > 1:
        raise UserError(
            f"{name!r}{place} is {' or '.join(sorted(found))}. Write the whole "
            "name of one."
        )
    if not found:
        names = [last(known) for known, _ in _registry.items()]
        raise UserError(
            f"gin knows no {name!r}{place}.{nearest(name, names)} Names from a "
            f"module of yours need an `import` line in the gin file.{reason}"
        )
    return _registry[found[0]]


def called(name):
    """Returns the entries that a name may stand for, a list."""
    return _registry.get_all_matches(name)


def shortest(selector):
    """Returns the shortest name that stands for a part alone."""
    return _registry.minimal_selector(selector)


_NAMED = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)


def _signature(function):
    """Returns the parameters of a function, a list; none of most builtins."""
    try:
        return [*inspect.signature(function).parameters.values()]
    except ValueError:
        return []


@functools.cache
def parameters(function):
    """Returns {name: parameter}, of a class with those of its base classes."""
    functions = [function]
    if inspect.isclass(function):
        functions = [base.__init__ for base in reversed(function.__mro__)]
    return {
        parameter.name: parameter
        for function in functions
        for parameter in _signature(function)
        if parameter.kind in _NAMED and parameter.name != "self"
    }


def declares(function, name, kind):
    """Whether a parameter's annotation is `kind`, a subclass, or one of them | None."""
    known = parameters(function)
    annotation = known[name].annotation if name in known else None
    kinds = {kind, *kind.__subclasses__()}
    if isinstance(annotation, str):  # as of `from __future__ import annotations`
        names = re.findall(r"\w+", annotation)
        return any(x.__name__ in names for x in kinds)
    return annotation in kinds or not kinds.isdisjoint(typing.get_args(annotation))


def accepted(function):
    """Returns the names that a call takes, those of base classes through **kwargs."""
    return [*(parameters if takes_any(function) else own_parameters)(function)]


@functools.cache
def own_parameters(function):
    """Returns {name: parameter} of a call, in order; of a class those of `__init__`."""
    called = function
    if inspect.isclass(function) and function.__init__ is not object.__init__:
        called = function.__init__  # Keras' `__new__` takes anything.
    found = {p.name: p for p in _signature(called) if p.kind in _NAMED}
    if called is not function and found:
        del found[next(iter(found))]  # self
    return found


@functools.cache
def places(function):
    """Returns the names that a call may give by place, a list."""
    known = own_parameters(function).items()
    return [name for name, p in known if p.kind != p.KEYWORD_ONLY]


def may_be_bound(entry, parameter):
    """Whether the lists of `gin.register` let gin text set a parameter of a part."""
    allowed, denied = entry.allowlist, entry.denylist
    return parameter in allowed if allowed else parameter not in (denied or ())


def takes_any(function):
    """Whether a call of a function or class takes arguments of any name."""
    function = inspect.unwrap(function)
    called = function.__init__ if inspect.isclass(function) else function
    return any(p.kind == p.VAR_KEYWORD for p in _signature(called))


@functools.cache
def needed(function):
    """Returns the names of a function's arguments that have no default, a list."""
    none = inspect.Parameter.empty, gin.REQUIRED
    known = own_parameters(function).items()
    return [name for name, p in known if any(p.default is x for x in none)]
