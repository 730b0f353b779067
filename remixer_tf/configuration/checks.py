"""Mistakes in gin text: each is one message, with the nearest names."""

import functools
import inspect
import os
import re

import gin

from remixer_tf.configuration.bindings import RUN_FILE, Name, gin_folder
from remixer_tf.configuration.configurables import configurables
from remixer_tf.data.late_tasks import register_waiting
from remixer_tf.errors import UserError, nearest


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
    owned = {}  # of each macro and configurable
    for binding in final.values():
        owned.setdefault(binding.owner, []).append(binding)
    read = set()
    new = {b.owner for b in final.values() if b.parameter} - parts
    while new:
        read |= new
        strings = {s for o in new for b in owned.get(o, ()) for s in b.strings()}
        # One in quotes is meant to be read too; who receives it says that it is not.
        new = {
            s.last if isinstance(s, Name) else re.match(r"\w*", s)[0] for s in strings
        } - read
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
        for reference in binding.references():
            _find(reference.selector, binding.place)
        if not binding.parameter:
            continue
        part = _find(binding.selector, binding.place)
        known = sorted(parameters(part.wrapped))
        if new := getattr(part.wrapped, "moved", {}).get(binding.parameter):
            name = f"{part.name}.{binding.parameter}"
            raise UserError(f"{name} has a new name: {new}.")
        # gin accepts every name for what takes **kwargs, as Keras' classes do.
        strict = part.name in _ours() or _is_layer(part.wrapped)
        if binding.parameter not in known and (strict or not _takes_any(part.wrapped)):
            raise UserError(
                f"{part.name} has no parameter {binding.parameter!r}{binding.place}."
                f"{nearest(binding.parameter, known)} It has: {', '.join(known)}."
            )


def check_values(final):
    """Raises a UserError for values that cannot be what they are for."""
    _check_loops(final)
    for name, binding in final.items():
        for string in binding.strings():
            if isinstance(string, Name) and string[0] == "%":
                _check_macro(string[1:], final)
        for reference in binding.references():
            _check_reference(reference)
        _check_boolean(binding, final)
        part = _registered(binding.value) if binding.file is None else None
        if part and part.name in _ours() and inspect.isclass(part.wrapped):
            brackets = "()" if _needs_brackets(part) else ""
            raise UserError(
                f"--gin.{name}={binding.value} is the name of a class. Did you mean "
                f"--gin.{name}=@{binding.value}{brackets}"
            )


def check_circles(config):
    """Raises a UserError for a part that has itself among its parameters.

    Args:
        config: {(scope, selector): {parameter: value}}, as gin holds it.
    """

    def uses(key):
        # A reference without a scope keeps that of the call.
        scope, selector = key
        parts = scope.split("/") if scope else []
        bindings = {}
        for end in range(len(parts) + 1):
            bindings |= config.get(("/".join(parts[:end]), selector), {})
        keys = (part.config_key for part in gin.config.iterate_references(bindings))
        return {(name or scope, used) for name, used in keys}

    used, new = {}, config.keys()
    while new:
        used |= {key: uses(key) for key in new}
        new = set().union(*(used[key] for key in new)) - used.keys()
    for scope, selector in used:
        seen, new = set(), {(scope, selector)}
        while new:
            new = set().union(*(used[key] for key in new)) - seen
            seen |= new
        if (scope, selector) in seen:
            name = f"{scope}/{selector.rpartition('.')[2]}".removeprefix("/")
            raise UserError(
                f"@{name} has itself among its parameters, perhaps by others. Give "
                "one of them another value."
            )


def how_to_set(name):
    """Returns a sentence on how to set a macro or a parameter."""
    return f"Set it with --gin.{name}=VALUE, or with `{name} = VALUE` in a gin file."


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
    uses = [b for b in final.values() if f"%{binding.name}" in b.strings()]
    if not uses:
        strings = {s for b in final.values() for s in b.strings()}
        macros = {s[1:] for s in strings if s.startswith("%")}
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


def _check_loops(final):
    """Raises if a macro stands for itself, perhaps by others."""
    uses = {f"%{n}": b.strings() for n, b in final.items() if not b.parameter}
    for macro in uses:
        seen, new = set(), {macro}
        while new:
            new = {used for name in new for used in uses.get(name, ())} - seen
            seen |= new
        if macro in seen:
            name = macro[1:]
            raise UserError(f"the macro {name} stands for itself. Give it a value.")


def _check_macro(name, final):
    if name in final or name == "gin.REQUIRED":
        return
    try:
        gin.query_parameter(name)  # a constant of a module
    except ValueError:
        macros = [b.name for b in final.values() if not b.parameter]
        raise UserError(
            f"the macro {name} is used but not set.{nearest(name, macros)} "
            f"{how_to_set(name)}"
        ) from None


def _check_reference(reference):
    part = _registered(reference.selector)
    if part is None:  # of a file with gin's dynamic registration
        return
    if _needs_brackets(part) and not reference.endswith("()"):
        raise UserError(
            f"@{part.name} is written with brackets where it is used: @{part.name}()"
        )
    # gin puts its own `__init__` into the class, and Keras reads the names of the
    # arguments from it.
    if part.wrapper is part.wrapped and _is_layer(part.wrapped):
        raise UserError(
            f"{part.name} is a Keras layer with @gin.configurable, which Keras cannot "
            f"build. Write @gin.register above the class in {part.module}."
        )


def _check_boolean(binding, final):
    """Raises if what is True or False by default is neither."""
    part = _registered(binding.selector) if binding.parameter else None
    parameter = part and parameters(part.wrapped).get(binding.parameter)
    if not parameter or not isinstance(parameter.default, bool):
        return
    value = binding.value
    while isinstance(value, Name) and value[1:] in final:
        value = final[value[1:]].value
    if not isinstance(value, (bool, Name)):
        name = f"{binding.owner}.{binding.parameter}"
        raise UserError(f"{name} must be True or False. Received: {name}={value!r}")


def _needs_brackets(part):
    """Whether a part is used as it is made."""
    import keras  # late, as all that is slow to import

    schedule = keras.optimizers.schedules.LearningRateSchedule
    schedules = inspect.isclass(part.wrapped) and issubclass(part.wrapped, schedule)
    return schedules or part.name in ("CrossEntropy", "InitialCheckpoint", "Run")


def _takes_any(function):
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def _is_layer(value):
    import keras  # late, as all that is slow to import

    return inspect.isclass(value) and issubclass(value, keras.layers.Layer)


@functools.cache
def _ours():
    return frozenset(name for _, name, _ in configurables())
