"""Mistakes in gin text: each is one message, with the nearest names."""

import functools
import inspect
import os
import re

import gin

from remixer_tf.configuration.bindings import (
    RUN_FILE,
    Name,
    gin_folder,
    is_binding,
    name_of,
    owner_of,
    strings_in,
)
from remixer_tf.configuration.configurables import configurables
from remixer_tf.data.late_tasks import register_waiting
from remixer_tf.errors import UserError, nearest

_REQUIRED = "%gin.REQUIRED"


def check_order(statements):
    """Raises a UserError if the files of a run come before those of its model."""
    files = {}
    for binding in filter(is_binding, statements):
        name, file = name_of(binding), binding.location.filename
        of_run = files.get("train.dataset", file)
        if name == "train.model" and name not in files and of_run != file:
            raise UserError(
                f"{file} says what the model is, and comes after a file that says how "
                "it is trained, whose VOCAB_SIZE and others it would set back. Name "
                "the model's file first."
            )
        files[name] = file


def check_read(statements, parts=frozenset()):
    """Raises a UserError if the command line sets what nothing reads.

    Args:
        statements: what `bindings.read_all` returns.
        parts: names of what is made only where a @reference names it.

    Returns:
        list of messages, of what the user's own files set and nothing reads.
    """
    final = _final(statements)
    owned = {}  # of each macro and configurable
    for binding in final.values():
        owned.setdefault(owner_of(binding), []).append(binding)
    macros = {name for name, binding in final.items() if not binding.arg_name}
    read, new = set(), owned.keys() - {owner_of(final[m]) for m in macros} - parts
    while new:
        read |= new
        # One in quotes is meant to be read too; who receives it says that it is not.
        values = [b.value for owner in new for b in owned.get(owner, ())]
        new = set(map(_last_name, strings_in(values))) - read
    warnings = []
    for name, binding in final.items():
        file = binding.location.filename
        if owner_of(binding) in read:
            continue
        if file is None:
            raise UserError(f"--gin.{name} sets {_unread(name, final, read)}")
        ours = os.path.abspath(file).startswith(gin_folder() + os.sep)
        if name in macros and not ours and os.path.basename(file) != RUN_FILE:
            warnings.append(f"{file} sets {name}, {_unread(name, final, read)}")
    return warnings


def check_names(statements):
    """Raises a UserError for a name or a parameter that gin does not know.

    The modules that the statements import must be imported.
    """
    dynamic = {  # Files whose names are Python's own.
        statement.location.filename
        for statement in statements
        if not is_binding(statement)
        and getattr(statement, "module", "").startswith("__gin__.")
    }
    for binding in filter(is_binding, statements):
        if binding.location.filename in dynamic:
            continue
        place = place_of(binding)
        for name in _references(binding.value):
            _find(name.selector, place)
        if binding.arg_name:
            part = _find(binding.selector, place)
            known = sorted(parameters(part.wrapped))
            strict = part.name in _ours() or _is_layer(part.wrapped)
            # gin accepts every name for what takes **kwargs, as Keras' classes do.
            if binding.arg_name not in known and (strict or not _takes_any(part)):
                raise UserError(
                    f"{part.name} has no parameter {binding.arg_name!r}{place}."
                    f"{nearest(binding.arg_name, known)} It has: {', '.join(known)}."
                )


def check_values(statements, complete):
    """Raises a UserError for values that cannot be what they are for.

    Args:
        statements: what `bindings.read_all` returns; `check_names` has passed.
        complete: bool, whether all that is `%gin.REQUIRED` must be set.

    Returns:
        list of names that are required and not set, [] if `complete`.
    """
    final = _final(statements)
    missing = [name for name, binding in final.items() if binding.value == _REQUIRED]
    if missing and complete:
        raise UserError(
            f"{missing[0]} is required and not set. {_how_to_set(missing[0])}"
        )
    for name, binding in final.items():
        for macro in strings_in(binding.value):
            if isinstance(macro, Name) and macro[0] == "%":
                _check_macro(macro[1:], final)
        for reference in _references(binding.value):
            _check_reference(reference)
        _check_boolean(binding, final)
        part = _registered(binding.value)
        if (
            binding.location.filename is None
            and part is not None
            and part.name in _ours()
            and inspect.isclass(part.wrapped)
        ):
            brackets = "()" if _needs_brackets(part) else ""
            raise UserError(
                f"--gin.{name}={binding.value} is the name of a class. Did you mean "
                f"--gin.{name}=@{binding.value}{brackets}"
            )
    return missing


def place_of(statement):
    """Returns where a statement is, for a message; "" on the command line."""
    file, line, *_ = statement.location
    return f" (in {file}, line {line})" if file else ""


@functools.cache
def parameters(function):
    """Returns {name: parameter}, of a class with those of its base classes."""
    functions = [function]
    if inspect.isclass(function):
        functions = [
            vars(base)["__init__"]
            for base in reversed(function.__mro__[:-1])
            if "__init__" in vars(base)
        ]
    return {
        parameter.name: parameter
        for function in functions
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and parameter.name != "self"
    }


def _final(statements):
    """Returns {name: the binding that counts}: the last one."""
    return {name_of(b): b for b in statements if is_binding(b)}


def _last_name(text):
    """`Name` of "@a/module.Name()"; the first word of another text."""
    if isinstance(text, Name):
        return text.selector.rpartition(".")[2]
    return re.match(r"\w*", text)[0]


def _unread(name, final, read):
    """Says of a macro or parameter why nothing reads it, and what is read instead."""
    if final[name].arg_name:
        owner = owner_of(final[name])
        return f"what nothing reads: the configuration has no @{owner}."
    used = {n: set(strings_in(b.value)) for n, b in final.items()}
    uses = [n for n, strings in used.items() if f"%{name}" in strings]
    if not uses:
        macros = {s[1:] for s in set().union(*used.values()) if s[:1] == "%"}
        return f"a macro that nothing uses.{nearest(name, macros)}"
    parameter = uses[0].rpartition(".")[2]
    instead = [
        f" It has {n} = {b.value!r}."
        for n, b in final.items()
        if n.endswith(f".{parameter}") and owner_of(b) in read
    ]
    return (
        f"what nothing reads: it is the value of {uses[0]}, and the configuration has "
        f"no @{owner_of(final[uses[0]])}.{''.join(instead[:1])}"
    )


def _references(value):
    """Yields the @references in a value."""
    return (s for s in strings_in(value) if isinstance(s, Name) and s[0] == "@")


def _registered(selector):
    """Returns what gin has registered under a name, None if nothing or several."""
    found = gin.config._REGISTRY.get_all_matches(selector) if _is_name(selector) else []
    return found[0] if len(found) == 1 else None


def _is_name(value):
    return isinstance(value, str) and bool(re.fullmatch(r"\w+(\.\w+)*", value))


def _find(selector, place):
    """Returns what gin has registered under a name.

    Raises:
        UserError: nothing, or several things.
    """
    found = gin.config._REGISTRY.matching_selectors(selector)
    if len(found) > 1:
        raise UserError(
            f"several things are called {selector!r}{place}: {', '.join(found)}. Write "
            "the whole name of one."
        )
    if found:
        return _registered(selector)
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


def _check_macro(name, final):
    if name in final or f"%{name}" == _REQUIRED:
        return
    try:
        gin.query_parameter(name)  # a constant of a module
    except ValueError:
        macros = [name for name, binding in final.items() if not binding.arg_name]
        raise UserError(
            f"the macro {name} is used but not set.{nearest(name, macros)} "
            f"{_how_to_set(name)}"
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
    part = _registered(binding.selector) if binding.arg_name else None
    parameter = part and parameters(part.wrapped).get(binding.arg_name)
    if not parameter or not isinstance(parameter.default, bool):
        return
    value = binding.value
    while isinstance(value, Name) and value[1:] in final:
        value = final[value[1:]].value
    if not isinstance(value, (bool, Name)):
        name = f"{owner_of(binding)}.{binding.arg_name}"
        raise UserError(f"{name} must be True or False. Received: {name}={value!r}")


def _needs_brackets(part):
    """Whether a part is used as it is made."""
    import keras  # late, as all that is slow to import

    schedule = keras.optimizers.schedules.LearningRateSchedule
    return part.name in ("CrossEntropy", "InitialCheckpoint") or (
        inspect.isclass(part.wrapped) and issubclass(part.wrapped, schedule)
    )


def _takes_any(part):
    kinds = [p.kind for p in inspect.signature(part.wrapped).parameters.values()]
    return inspect.Parameter.VAR_KEYWORD in kinds


def _is_layer(value):
    import keras  # late, as all that is slow to import

    return inspect.isclass(value) and issubclass(value, keras.layers.Layer)


@functools.cache
def _ours():
    return frozenset(name for _, name, _ in configurables())


def _how_to_set(name):
    return f"Set it with --gin.{name}=VALUE, or with `{name} = VALUE` in a gin file."
