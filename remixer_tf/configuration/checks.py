"""Mistakes in gin text: each is one message, with the nearest names."""

import collections
import dataclasses
import graphlib
import inspect
import os

from remixer_tf.arguments import TheRun
from remixer_tf.checkpoints import versions
from remixer_tf.configuration import parts
from remixer_tf.configuration.bindings import (
    RUN_FILE,
    Name,
    gin_folder,
    last,
    name_of,
    names_in,
    place_of,
)
from remixer_tf.configuration.values import MACRO, TWO_FILES, shown, written
from remixer_tf.errors import UserError, nearest

# Classes that are bound as objects, `@Name()`, as our dataclasses are.
_OBJECTS = {"CrossEntropy", "InitialCheckpoint", "LearningRateSchedule"}
_LIBRARIES = ("keras.", "remixer_tf.", "seqio.")
# {parameter: arguments that its function is called with}, with [] for a function in a
# list. Other parameters are called with what their defaults need, or with nothing.
_GIVEN = {
    "attention": ["d_out"],
    "fresh[]": ["shape"],
    "sublayers": ["layer"],
    "transforms[]": ["image", "seeds"],
}
# Arguments that parts of this package give by name to what they call.
_BY_NAME = {"causal", "dtype", "name", "seed", "shard_info", "steps_per_call"}


def check_order(bindings):
    """Raises a UserError if the files of a run come before those of its model."""
    of_run = None
    for binding in bindings:
        name, file = name_of(binding), binding.location.filename
        if name == "train.dataset":
            of_run = file
        elif name == "Run.model" and of_run in (None, file):
            return
        elif name == "Run.model":
            raise UserError(
                f"{file} says what the model is, and comes after a file that says how "
                "it is trained. It would reset VOCAB_SIZE and other macros. Name the "
                "model's file first."
            )


def check_read(final, parts=frozenset()):
    """Raises a UserError if the command line sets what nothing reads.

    `final` is {name: binding}, the last binding of each name, and `parts` are names of
    what is made only where a @reference names it. Returns a list of messages about what
    the user's own files set and nothing reads.
    """
    uses = {}  # {macro or configurable: those that its values name}
    for binding in final.values():
        named = map(last, names_in(binding.value))
        uses.setdefault(last(binding.selector), set()).update(named)
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
    bindings, user, of = final.values(), final[name], ""
    if not user.arg_name:
        users = [b for b in bindings if b.arg_name and f"%{name}" in names_in(b.value)]
        if not users:
            used = {last(n) for b in bindings for n in names_in(b.value) if n[0] == "%"}
            return f"a macro that nothing uses.{nearest(name, used)}"
        user = min(users)
        of = f"it is the value of {name_of(user)}, and "
    instead = [
        f" It has {name_of(b)} = {b.value!r}."
        for b in bindings
        if b.arg_name == user.arg_name and last(b.selector) in read
    ]
    return (
        f"what nothing reads: {of}the configuration has no @{last(user.selector)}."
        f"{''.join(instead[:1])}"
    )


def check_names(final):
    """Raises a UserError for a name that gin does not know, or a wrong reference.

    For `final` see `check_read`.
    """
    for binding in final.values():
        try:
            _check_names_of(binding)
        except UserError as error:
            file = binding.location.filename or ""
            if not file.endswith(RUN_FILE):
                raise
            note = versions.age_note(os.path.dirname(file))
            raise UserError(f"{error}{note}") from None


def _check_names_of(binding):
    place = place_of(binding)
    for name in names_in(binding.value):
        if name[0] == "@":
            _check_reference(name, place)
    if not place:
        _check_no_class(binding)
    if binding.arg_name:
        part = parts.find(binding.selector, place)
        _check_parameter(part, binding.arg_name, place)
        _check_lists(part, binding.arg_name, place)


def check_values(configuration, complete):
    """Raises a UserError for values that are missing, or of another kind.

    A dictionary has each key once, also where macros are keys. A parameter is True or
    False if its annotation is `bool`, or if its default is and it has no annotation;
    with `bool | None` it may be None too. A value that is required and not set is an
    error if `complete`, else it becomes None in the configuration.
    """
    for (scope, selector), bindings in configuration.bindings.items():
        macro = selector == MACRO
        known = {} if macro else parts.parameters(parts.find(selector).wrapped)
        for parameter, value in bindings.items():
            name = written(scope, selector, parameter)
            kind = _type(known[parameter]) if parameter in known else None
            read = configuration.without_macros(value)
            _check_keys(configuration, name, value)
            _check_flag(name, read, kind)
            if isinstance(value, Name) and value == "%gin.REQUIRED":
                if complete:
                    raise UserError(f"{name} is required and not set. {_how_to(name)}")
                bindings[parameter] = None


def _check_keys(configuration, name, value):
    """Raises a UserError if keys of a dictionary in a value are equal, or are lists."""
    if isinstance(value, dict):
        keys = [_read_key(configuration, key) for key in value]
        try:
            counts = collections.Counter(keys)
        except TypeError:
            raise UserError(
                f"{name} has a list or a dictionary as a key: {value!r}"
            ) from None
        if twice := [key for key, count in counts.items() if count > 1]:
            text = f"{name} gives {twice[0]!r} twice in a dictionary: {value!r}"
            raise UserError(text)
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for item in value:
        _check_keys(configuration, name, item)


def _read_key(configuration, key):
    """Returns a key with what they stand for in place of the macros in it."""
    if isinstance(key, tuple):
        return tuple(_read_key(configuration, item) for item in key)
    macro = isinstance(key, Name) and configuration.bindings.get((key[1:], MACRO))
    return _read_key(configuration, macro["value"]) if macro else key


def _check_flag(name, value, kind):
    """Raises a UserError if a parameter's type is a flag's, and its value is none."""
    if kind in (bool, "bool"):
        expected, given = "True or False", (bool, Name)
    elif kind in (bool | None, "bool | None"):
        expected, given = "True, False or None", (bool, Name, type(None))
    else:
        return
    if not isinstance(value, given):
        raise UserError(f"{name} must be {expected}. Received: {name}={value!r}")


def _type(parameter):
    """Returns the annotation of a parameter; without one, the type of its default."""
    if parameter.annotation is not parameter.empty:
        return parameter.annotation
    return type(parameter.default)


def _check_parameter(part, parameter, place):
    known = sorted(parts.parameters(part.wrapped))
    # A class hands its **kwargs to a base class, so that `parameters` has their names.
    is_class = "Layer" in _bases(part) or part.selector.startswith(_LIBRARIES)
    takes_any = parts.takes_any(part.wrapped)
    if parameter not in known and (is_class or not takes_any):
        raise UserError(
            f"{part.name} has no parameter {parameter!r}{place}."
            f"{nearest(parameter, known)} It has: {', '.join(known)}."
        )


def _check_lists(part, parameter, place):
    """Raises a UserError for a parameter that `gin.register` keeps from gin text."""
    if not parts.may_be_bound(part, parameter):
        raise UserError(
            f"{part.name}.{parameter} cannot be set{place}: the list with which "
            f"{part.name} was registered (gin.register) leaves it out."
        )


def _check_no_class(binding):
    """Raises if the value on a command line is the name of a class, without @."""
    for part in parts.called(str(binding.value)):
        if inspect.isclass(part.wrapped):
            name = f"--gin.{name_of(binding)}"
            raise UserError(
                f"{name}={part.name} is the name of a class. Did you mean "
                f"{name}=@{part.name}{'()' * _needs_brackets(part)}"
            )


def _check_reference(name, place):
    part = parts.find(name.removesuffix("()").lstrip("@").rpartition("/")[2], place)
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


def check_references(configuration):
    """Raises a UserError if a macro is not set, or values refer in a circle."""
    uses, keys = {}, [*configuration.bindings]  # {key: the keys that its values name}
    while keys:
        key = scope, selector = keys.pop()
        if key in uses:
            continue
        if selector == MACRO and key not in configuration.bindings:
            macros = [name for name, owner in configuration.bindings if owner == MACRO]
            raise UserError(
                f"the macro {scope} is used but not set.{nearest(scope, macros)} "
                f"{_how_to(scope)}"
            )
        uses[key] = [used for _, used in configuration.used_by(*key)]
        keys += uses[key]
    try:
        graphlib.TopologicalSorter(uses).prepare()
    except graphlib.CycleError as error:
        names = [f"{'@%'[k[1] == MACRO]}{written(*k)}" for k in error.args[1]]
        raise UserError(
            "values refer to each other in a circle: "
            f"{' uses '.join(reversed(names))}. Give one of them another value."
        ) from None


def check_arguments(configuration):
    """Raises a UserError if a @reference has no value for an argument without default.

    No values refer in a circle.
    """
    used = [x for key in configuration.bindings for x in configuration.used_by(*key)]
    named = {selector for _, (_, selector) in used}
    keys = [key for key in configuration.bindings if key[1] not in {*named, MACRO}]
    seen = set()
    while keys:
        key = scope, selector = keys.pop()
        if key in seen:
            continue
        seen.add(key)
        for parameter, value in configuration.written(*key).items():
            value = configuration.without_macros(value)
            place = parameter + "[]" * (not isinstance(value, Name))
            for name, inner in configuration.keys_of(value, scope):
                _check_has_values(configuration, name, inner, selector, place)
                keys.append(inner)


def _check_has_values(configuration, name, key, owner, place):
    """Raises a UserError if a reference in a parameter of `owner` lacks an argument."""
    parameter = place.removesuffix("[]")
    part = parts.find(key[1]).wrapped
    needed = [x for x in parts.needed(part) if not parts.declares(part, x, TheRun)]
    given = []
    if not name.endswith("()"):  # else it is called without arguments
        holder = parts.parameters(parts.find(owner).wrapped).get(parameter)
        default = getattr(holder, "default", None)
        if callable(default) and holder.default is not holder.empty:
            given = parts.needed(default)
        elif owner.startswith("remixer_tf."):
            given = _GIVEN.get(place, [])
        else:  # A user's own part may call it with anything.
            return
        needed = [name for name in needed if name not in _BY_NAME]
    if not {*given} <= {*needed}:  # They are given by their places.
        given = needed[: len(given)]
    bound = configuration.written(*key)
    for argument in needed:
        if argument not in {*given, *bound}:
            place, lacks = written("", owner, parameter), written(*key, argument)
            raise UserError(
                f"{shown(name)} in {place} needs a value for {lacks}. {_how_to(lacks)}"
            )


def _how_to(name):
    how = f"Set it with --gin.{name}=VALUE, or with `{name} = VALUE` in a gin file."
    if name == "Run.model":
        how += f" {TWO_FILES}"
    if name == "VOCABULARY_FILE":
        how += " `remixer_tf train_vocabulary` makes one."
    return how


def _bases(part):
    """The names of a class and of its base classes."""
    return {base.__name__ for base in getattr(part.wrapped, "__mro__", ())}


def _needs_brackets(part):
    is_ours = part.selector.startswith("remixer_tf.")
    is_settings = is_ours and dataclasses.is_dataclass(part.wrapped)
    return is_settings or not _OBJECTS.isdisjoint(_bases(part))
