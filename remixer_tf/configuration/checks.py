"""Mistakes in gin text: each is one message, with the nearest names."""

import dataclasses
import functools
import graphlib
import inspect
import itertools
import os

import gin

from remixer_tf.configuration.bindings import (
    RUN_FILE,
    gin_folder,
    last,
    name_of,
    names_in,
    place_of,
)
from remixer_tf.configuration.configurables import configurables
from remixer_tf.data.late_tasks import register_waiting
from remixer_tf.errors import UserError, nearest

_REFERENCE = gin.config.ConfigurableReference
# Classes that are bound as objects, `@Name()`, as our dataclasses are.
_OBJECTS = {"CrossEntropy", "InitialCheckpoint", "LearningRateSchedule"}


def check_order(bindings):
    """Raises a UserError if the files of a run come before those of its model."""
    files = {}
    for binding in bindings:
        name, file = name_of(binding), binding.location.filename
        of_run = files.get("train.dataset", file)
        if name == "Run.model" and name not in files and of_run != file:
            raise UserError(
                f"{file} says what the model is, and comes after a file that says how "
                "it is trained. It would reset VOCAB_SIZE and other macros. Name the "
                "model's file first."
            )
        files[name] = file


def check_read(final, parts=frozenset()):
    """Raises a UserError if the command line sets what nothing reads.

    Args:
        final: {name: binding}, the last binding of each name.
        parts: names of what is made only where a @reference names it.

    Returns:
        list of messages about what the user's own files set and nothing reads.
    """
    uses = {}  # {macro or configurable: those that its values name}
    for binding in final.values():
        owners = (name.owner for name in names_in(binding.value))
        uses.setdefault(last(binding.selector), set()).update(owners)
    new = {last(b.selector) for b in final.values() if b.arg_name} - parts
    read, warnings = set(), []
    while new:
        read |= new
        new = set().union(*(uses.get(owner, ()) for owner in new)) - read
    for name, binding in final.items():
        file = binding.location.filename
        if last(binding.selector) in read:
            continue
        if file is None:
            raise UserError(f"--gin.{name} sets {_unread(name, final, read)}")
        ours = os.path.abspath(file).startswith(gin_folder() + os.sep)
        if not (binding.arg_name or ours or file.endswith(RUN_FILE)):
            warnings.append(f"{file} sets {name}, {_unread(name, final, read)}")
    return warnings


def _unread(name, final, read):
    """Says why nothing reads a macro or parameter, and what is read instead."""
    readers = [b for b in final.values() if f"%{name}" in names_in(b.value)]
    users = [b for b in readers if b.arg_name]
    if final[name].arg_name:
        user, of = final[name], ""
    elif users:
        user, of = users[0], f"it is the value of {name_of(users[0])}, and "
    else:
        names = {n for b in final.values() for n in names_in(b.value)}
        macros = [n[1:] for n in names if n[0] == "%"]
        return f"a macro that nothing uses.{nearest(name, macros)}"
    instead = [
        f" It has {name_of(b)} = {b.value!r}."
        for b in final.values()
        if b.arg_name == user.arg_name and last(b.selector) in read
    ]
    return (
        f"what nothing reads: {of}the configuration has no @{last(user.selector)}."
        f"{''.join(instead[:1])}"
    )


def check_names(final):
    """Raises a UserError for a name that gin does not know, or a wrong reference.

    Args:
        final: see `check_read`.
    """
    for binding in final.values():
        place, parameter = place_of(binding), binding.arg_name
        for name in names_in(binding.value):
            if name[0] == "@":
                _check_reference(name, _find(name.selector, place))
            else:
                _check_macro(name[1:], final)
        if not place:
            _check_no_class(binding)
        if not parameter:
            continue
        part = _find(binding.selector, place)
        known = sorted(parameters(part.wrapped))
        if new := getattr(part.wrapped, "moved", {}).get(parameter):
            raise UserError(f"{part.name}.{parameter} has a new name: {new}.")
        if parameter not in known and not _takes_any(part):
            raise UserError(
                f"{part.name} has no parameter {parameter!r}{place}."
                f"{nearest(parameter, known)} It has: {', '.join(known)}."
            )


def check_values(config, complete):
    """Raises a UserError for values that a part cannot take.

    Args:
        config: {(scope, selector): {parameter: value}}, as gin holds it. A value
            that is required and not set becomes None in it.
        complete: bool, whether such a value is an error instead.
    """
    _check_circles(config)
    for (scope, selector), bindings in config.items():
        known = parameters(gin.config._REGISTRY[selector].wrapped)
        for parameter, value in bindings.items():
            name = written(scope, selector, parameter)
            default = known[parameter].default if parameter in known else None
            value = without_macro(value)
            if isinstance(default, bool) and not isinstance(value, (bool, _REFERENCE)):
                raise UserError(
                    f"{name} must be True or False. Received: {name}={value!r}"
                )
            if repr(bindings[parameter]) == "%gin.REQUIRED":
                if complete:
                    raise UserError(f"{name} is required and not set. {_how_to(name)}")
                bindings[parameter] = None


@functools.cache
def parameters(function):
    """Returns {name: parameter}, of a class with those of its base classes."""
    functions = [function]
    if inspect.isclass(function):
        bases = (vars(base) for base in reversed(function.__mro__[:-1]))
        functions = [base["__init__"] for base in bases if "__init__" in base]
    return {
        parameter.name: parameter
        for function in functions
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name != "self"
    }


def without_macro(value):
    """Returns what a macro stands for; another value as it is."""
    while isinstance(value, _REFERENCE) and value.config_key[1] == "gin.macro":
        value = gin.config._CONFIG[value.config_key]["value"]
    return value


def written(scope, selector, parameter=""):
    """Returns "a/Name.parameter", or the name of a macro, as gin text has it."""
    if selector == "gin.macro":
        return scope
    short = gin.config._REGISTRY.minimal_selector(selector)
    return f"{scope}/{short}.{parameter}".strip("/.")


def _find(selector, place):
    """Returns what gin has registered under a name.

    Raises:
        UserError: nothing, or several things.
    """
    registry, reason = gin.config._REGISTRY, ""
    found = registry.matching_selectors(selector)
    try:
        if not found and register_waiting():
            found = registry.matching_selectors(selector)
    except ImportError as missing:
        reason = f" If the name is one of t5's: {missing}"
    if not found:
        raise UserError(
            f"gin knows no {selector!r}{place}.{nearest(selector, _ours())} Names from "
            f"a module of yours need an `import` line in the gin file.{reason}"
        )
    if len(found) > 1:
        raise UserError(
            f"several things are called {selector!r}{place}: {', '.join(found)}. "
            "Write the whole name of one."
        )
    return registry[found[0]]


def _check_no_class(binding):
    """Raises if the value on a command line is the name of a class, without @."""
    value = binding.value
    if isinstance(value, str) and value.startswith("remixer_tf."):
        value = value.rpartition(".")[2]
    if isinstance(value, str) and value in _ours():
        part = _find(value, "")
        if inspect.isclass(part.wrapped):
            name = f"--gin.{name_of(binding)}"
            raise UserError(
                f"{name}={part.name} is the name of a class. Did you mean "
                f"{name}=@{part.name}{'()' * _needs_brackets(part)}"
            )


def _check_reference(name, part):
    if _needs_brackets(part) and not name.endswith("()"):
        raise UserError(
            f"@{part.name} is written with brackets where it is used: @{part.name}()"
        )
    # gin puts its own `__init__` into the class, and Keras reads the names of the
    # arguments from it.
    if part.wrapper is part.wrapped and "Layer" in _bases(part):
        raise UserError(
            f"{part.name} is a Keras layer with @gin.configurable, which Keras cannot "
            f"build. Write @gin.register above the class in {part.module}."
        )


def _check_macro(name, final):
    if name not in final and not gin.config._CONSTANTS.matching_selectors(name):
        macros = [name for name, binding in final.items() if not binding.arg_name]
        raise UserError(
            f"the macro {name} is used but not set.{nearest(name, macros)} "
            f"{_how_to(name)}"
        )


def _check_circles(config):
    """Raises if a part or a macro has itself among its values, perhaps by others."""
    graph, keys = {}, [*config]
    for scope, selector in keys:  # The list grows.
        if (scope, selector) in graph:
            continue
        values = {}
        for outer in ("", *itertools.accumulate(scope.split("/"), "{}/{}".format)):
            values |= config.get((outer, selector), {})
        used = (part.config_key for part in gin.config.iterate_references(values))
        # A reference without a scope keeps that of the call.
        graph[scope, selector] = [(inner or scope, name) for inner, name in used]
        keys += graph[scope, selector]
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        names = [
            f"{'%' if key[1] == 'gin.macro' else '@'}{written(*key)}"
            for key in reversed(error.args[1])
        ]
        raise UserError(
            f"values refer to each other in a circle: {' uses '.join(names)}. Give one "
            "of them another value."
        ) from None


def _how_to(name):
    how = f"Set it with --gin.{name}=VALUE, or with `{name} = VALUE` in a gin file."
    if name == "VOCABULARY_FILE":
        how += " `remixer_tf train_vocabulary` makes one."
    return how


def _bases(part):
    """The names of a class and of its base classes."""
    return {base.__name__ for base in getattr(part.wrapped, "__mro__", ())}


def _needs_brackets(part):
    ours = dataclasses.is_dataclass(part.wrapped) and part.name in _ours()
    return ours or bool(_bases(part) & _OBJECTS)


def _takes_any(part):
    """Whether a part takes **kwargs with names of its own, as Keras' layers do not."""
    kinds = [p.kind for p in inspect.signature(part.wrapped).parameters.values()]
    known = part.name in _ours() or "Layer" in _bases(part)
    return inspect.Parameter.VAR_KEYWORD in kinds and not known


@functools.cache
def _ours():
    return frozenset(name for _, name, _ in configurables())
