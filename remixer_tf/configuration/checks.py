"""Mistakes in gin text: each is one message, with the nearest names."""

import functools
import inspect
import os
import re

import gin

from remixer_tf.configuration.bindings import RUN_FILE, gin_folder
from remixer_tf.configuration.configurables import configurables
from remixer_tf.data.late_tasks import register_waiting
from remixer_tf.errors import UserError, nearest

# Classes whose objects are used, and not the classes: a reference has brackets.
_MADE = {"CrossEntropy", "InitialCheckpoint", "LearningRateSchedule", "Run"}


def check_order(bindings):
    """Raises a UserError if the files of a run come before those of its model."""
    files = {}
    for binding in bindings:
        name, file = binding.name, binding.file
        of_run = files.get("train.dataset", file)
        if name == "Run.model" and name not in files and of_run != file:
            raise UserError(
                f"{file} says what the model is, and comes after a file that says how "
                "it is trained, whose VOCAB_SIZE and others it would set back. Name "
                "the model's file first."
            )
        files[name] = file


def check_read(final, parts=frozenset()):
    """Raises a UserError if the command line sets what nothing reads.

    Args:
        final: {name: `Binding`} of the bindings that count.
        parts: names of what is made only where a @reference names it.

    Returns:
        list of messages, of what the user's own files set and nothing reads.
    """
    uses = {}  # of each macro and configurable, those that it names
    for binding in final.values():
        owners = (name.owner for name in binding.names)
        uses.setdefault(binding.owner, set()).update(owners)
    called = {b.owner for b in final.values() if b.parameter} - parts
    read = _reached(called, lambda owner: uses.get(owner, ()))
    warnings = []
    for name, binding in final.items():
        if binding.owner in read:
            continue
        if binding.file is None:
            raise UserError(f"--gin.{name} sets {_unread(binding, final, read)}")
        ours = os.path.abspath(binding.file).startswith(gin_folder() + os.sep)
        if not (binding.parameter or ours or binding.file.endswith(RUN_FILE)):
            unread = _unread(binding, final, read)
            warnings.append(f"{binding.file} sets {name}, {unread}")
    return warnings


def check_names(bindings):
    """Raises a UserError for a name or a parameter that gin does not know."""
    for binding in bindings:
        for name in binding.names:
            if name[0] == "@":
                _find(name.selector, binding.place)
        if binding.file is None:
            _check_no_reference(binding)
        if not binding.parameter:
            continue
        part = _find(binding.selector, binding.place)
        known = sorted(parameters(part.wrapped))
        if new := getattr(part.wrapped, "moved", {}).get(binding.parameter):
            name = f"{part.name}.{binding.parameter}"
            raise UserError(f"{name} has a new name: {new}.")
        if binding.parameter not in known and not _takes_any(part):
            raise UserError(
                f"{part.name} has no parameter {binding.parameter!r}{binding.place}."
                f"{nearest(binding.parameter, known)} It has: {', '.join(known)}."
            )


def check_values(config, complete):
    """Raises a UserError for values that cannot be what they are for.

    Args:
        config: {(scope, selector): {parameter: value}}, as gin holds it. What is
            required and not set becomes None in it.
        complete: bool, whether that is an error instead.
    """
    for reference in gin.config.iterate_references(config):
        _check_reference(reference, config)
    _check_circles(config)
    for (scope, selector), bindings in config.items():
        known = parameters(gin.config._REGISTRY[selector].wrapped)
        for parameter, value in bindings.items():
            default = known[parameter].default if parameter in known else None
            if isinstance(default, bool):
                _check_boolean(f"{_last(selector)}.{parameter}", value, config)
            if repr(value) != "%gin.REQUIRED":
                continue
            if complete:
                name = _written(scope, selector, parameter)
                raise UserError(f"{name} is required and not set. {_how_to_set(name)}")
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


def _unread(binding, final, read):
    """Says of a macro or parameter why nothing reads it, and what is read instead."""
    if binding.parameter:
        return f"what nothing reads: the configuration has no @{binding.owner}."
    uses = [b for b in final.values() if f"%{binding.name}" in b.names]
    if not uses:
        macros = {n[1:] for b in final.values() for n in b.names if n[0] == "%"}
        return f"a macro that nothing uses.{nearest(binding.name, macros)}"
    use = uses[0]
    instead = [
        f" It has {b.name} = {b.value!r}."
        for b in final.values()
        if b.parameter == use.parameter and b.owner in read
    ]
    return (
        f"what nothing reads: it is the value of {use.name}, and the configuration has "
        f"no @{use.owner}.{''.join(instead[:1])}"
    )


def _reached(start, uses):
    """All that `uses`, from a key to the keys that it uses, leads to from some keys."""
    reached = dict.fromkeys(start)
    keys = [*reached]
    for key in keys:
        new = [used for used in uses(key) if used not in reached]
        reached |= dict.fromkeys(new)
        keys += new
    return reached


def _registered(selector):
    """Returns what gin has registered under a name; None if nothing or several."""
    if not isinstance(selector, str) or not re.fullmatch(r"\w+(\.\w+)*", selector):
        return None
    found = gin.config._REGISTRY.get_all_matches(selector)
    return found[0] if len(found) == 1 else None


def _find(selector, place):
    """Returns what gin has registered under a name.

    Raises:
        UserError: nothing, or several things.
    """
    if part := _registered(selector):
        return part
    if several := gin.config._REGISTRY.matching_selectors(selector):
        raise UserError(
            f"several things are called {selector!r}{place}: {', '.join(several)}. "
            "Write the whole name of one."
        )
    reason = ""
    try:
        if register_waiting():
            return _find(selector, place)
    except ImportError as missing:
        reason = f" If the name is one of t5's: {missing}"
    raise UserError(
        f"gin knows no {selector!r}{place}.{nearest(selector, _ours())} Names from a "
        f"module of yours need an `import` line in the gin file.{reason}"
    )


def _check_no_reference(binding):
    """Raises if the value on a command line is the name of a class, without @."""
    part = _registered(binding.value)
    if part and part.name in _ours() and (bases := _bases(part)):
        brackets = "()" if bases & _MADE else ""
        raise UserError(
            f"--gin.{binding.name}={binding.value} is the name of a class. Did you "
            f"mean --gin.{binding.name}=@{binding.value}{brackets}"
        )


def _check_reference(reference, config):
    part = reference.configurable
    if part.selector == "gin.macro" and reference.config_key not in config:
        name = reference.config_key[0]
        macros = [scope for scope, selector in config if selector == "gin.macro"]
        raise UserError(
            f"the macro {name} is used but not set.{nearest(name, macros)} "
            f"{_how_to_set(name)}"
        )
    if _bases(part) & _MADE and not reference.evaluate:
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


def _check_circles(config):
    """Raises if a part or a macro has itself among its values, perhaps by others."""

    @functools.cache
    def uses(key):
        # A reference without a scope keeps that of the call.
        scope, selector = key
        parts = scope.split("/") if scope else []
        bindings = {}
        for end in range(len(parts) + 1):
            bindings |= config.get(("/".join(parts[:end]), selector), {})
        keys = (part.config_key for part in gin.config.iterate_references(bindings))
        return [(name or scope, used) for name, used in keys]

    for scope, selector in _reached(config, uses):
        if (scope, selector) not in _reached(uses((scope, selector)), uses):
            continue
        name = _written(scope, selector)
        if selector == "gin.macro":
            raise UserError(f"the macro {name} stands for itself. Give it a value.")
        raise UserError(
            f"@{name} has itself among its parameters, perhaps by others. Give one of "
            "them another value."
        )


def _check_boolean(name, value, config):
    """Raises if what is True or False by default is neither."""
    reference = gin.config.ConfigurableReference
    while isinstance(value, reference) and value.config_key[1] == "gin.macro":
        value = config[value.config_key]["value"]
    if not isinstance(value, (bool, reference)):
        raise UserError(f"{name} must be True or False. Received: {name}={value!r}")


def _written(scope, selector, parameter=""):
    """Returns "a/Name.parameter", or the name of a macro, as gin text has it."""
    if selector == "gin.macro":
        return scope
    return f"{scope}/{_last(selector)}.{parameter}".strip("/.")


def _last(selector):
    return selector.rpartition(".")[2]


def _how_to_set(name):
    file = " `remixer_tf train_vocabulary` makes one." * (name == "VOCABULARY_FILE")
    how = f"Set it with --gin.{name}=VALUE, or with `{name} = VALUE` in a gin file."
    return how + file


def _bases(part):
    """The names of a class and of its base classes."""
    return {base.__name__ for base in getattr(part.wrapped, "__mro__", ())}


def _takes_any(part):
    """Whether a part takes **kwargs with names of its own, as Keras' layers do not."""
    kinds = [p.kind for p in inspect.signature(part.wrapped).parameters.values()]
    known = part.name in _ours() or "Layer" in _bases(part)
    return inspect.Parameter.VAR_KEYWORD in kinds and not known


@functools.cache
def _ours():
    return frozenset(name for _, name, _ in configurables())
