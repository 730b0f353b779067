"""Settings and files that a task makes its examples from, to compare with later ones.

`describe_task` walks through the source and the preprocessors of a `seqio.Task`:
attributes, arguments, and what functions hold. A source may have an attribute
`settings`, a dictionary, which is described in place of all others. Text that names a
file stands for the file.
"""

import enum
import functools
import glob
import hashlib
import inspect
import math
import os
import re
import sys
import sysconfig
import types
from typing import NamedTuple

import numpy as np
import seqio
import tensorflow as tf

from remixer_tf.checkpoints.checksums import checksum
from remixer_tf.checkpoints.paths import locate
from remixer_tf.data.code_digest import code_digest, has_source
from remixer_tf.data.vocabularies import describe_vocabulary
from remixer_tf.errors import UserError

_LONGEST = 1000  # characters of a text, or values of a list, that are kept whole
_PLAIN = (type(None), bool, int, float, str)
_CONSTANTS = (*_PLAIN, list, tuple, dict)
# Where static and class methods, properties, cached ones, functools.cache and
# tf.function have the function.
_HOLDING = "__func__", "fget", "func", "__wrapped__", "python_function"
_LIBRARIES = [sysconfig.get_path(x) for x in ("stdlib", "purelib", "platlib")]


class Files(NamedTuple):
    """The files that a setting names."""

    path: str  # as it is set: a file, a pattern or a folder
    found: dict  # name -> path of each file that is there


def describe_task(task):
    """Returns what the cached examples of a `seqio.Task` depend on.

    It has dictionaries, lists, what JSON has, and `Files`. Vocabularies of features are
    not part of it, see `describe_vocabularies`.
    """
    before = task.preprocessors[: task._cache_step_idx]
    return {
        "source": _describe(task.source),
        "preprocessors": _describe(before),
        "features": {
            name: {"dtype": tf.as_dtype(x.dtype).name, "add_eos": x.add_eos}
            for name, x in task.output_features.items()
        },
    }


def to_json(value):
    """Returns what `describe_task` returns, with sizes and checksums for `Files`."""
    if isinstance(value, Files):
        files = {name: _record(path) for name, path in value.found.items()}
        return {"path": value.path, "contents": files}
    if isinstance(value, dict):
        return {name: to_json(x) for name, x in value.items()}
    if isinstance(value, list):
        return [to_json(x) for x in value]
    return value


def differences(saved, given, where=""):
    """Yields lines that say how a task differs from what `to_json` returned.

    Files that are no longer there are not compared, and names of folders do not count.
    """
    if isinstance(given, Files) or _is_record(saved):
        yield from _differing_files(saved, given, where)
    elif type(saved) is type(given) is dict:
        for name in [*saved, *(x for x in given if x not in saved)]:
            place = f"{where}.{name}".removeprefix(".source").strip(".")
            yield from differences(saved.get(name), given.get(name), place)
    elif type(saved) is type(given) is list and len(saved) == len(given):
        for index, pair in enumerate(zip(saved, given, strict=True)):
            yield from differences(*pair, f"{where}[{index}]")
    elif saved != given:
        yield f"{where} was {saved!r:.100} and is {given!r:.100}"


def _is_record(saved):
    return isinstance(saved, dict) and saved.keys() == {"path", "contents"}


def _differing_files(saved, given, where):
    was = saved["path"] if _is_record(saved) else saved
    now = given.path if isinstance(given, Files) else given
    if not (_is_record(saved) and isinstance(given, Files)):
        if os.path.basename(str(was)) != os.path.basename(str(now)):
            yield f"{where} was {was!r:.100} and is {now!r:.100}"
        return
    known, found = saved["contents"], given.found
    if len(known) == len(found) == 1:  # It may have another name.
        found = dict(zip(known, found.values(), strict=True))
    for name, path in found.items():
        if name not in known:
            yield f"{where} has {path} now"
        elif not _is_same(known[name], path):
            yield f"{path} has changed"


def _record(path):
    size, modified = _size_and_time(path)
    return {"bytes": size, "modified": modified, "crc32": checksum(path)}


def _is_same(record, path):
    size, modified = _size_and_time(path)
    if size != record["bytes"]:
        return False
    # Reading all of a large source would take longer than the rest of the start.
    return modified == record["modified"] or checksum(path) == record["crc32"]


def _size_and_time(path):
    if "://" in path:
        found = tf.io.gfile.stat(path)
        return found.length, found.mtime_nsec
    found = os.stat(path)  # TensorFlow's has whole seconds.
    return found.st_size, found.st_mtime_ns


def _describe(value, inside=()):
    """Returns a value as `describe_task` does; `inside` are ids of what holds it."""
    if id(value) in inside:
        return "..."
    inside = (*inside, id(value))
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, str) and len(value) <= _LONGEST:
        return _files_of_text(value) or value
    if isinstance(value, str) or _is_long(value):
        return hashlib.sha256(repr(value).encode()).hexdigest()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no NaN or infinity.
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, np.ndarray) and value.dtype == object:
        return _describe(value.tolist(), inside)  # Its bytes are addresses.
    if isinstance(value, dict):
        return {str(name): _describe(x, inside) for name, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_describe(x, inside) for x in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, (bytes, np.ndarray)):
        return hashlib.sha256(bytes(value)).hexdigest()
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        return hashlib.sha256(bytes(repr(value.numpy().tolist()), "utf8")).hexdigest()
    if isinstance(value, re.Pattern):
        return value.pattern
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, (type, types.ModuleType)):
        return _name(value)
    if isinstance(value, seqio.Vocabulary):
        return {k: x for k, x in describe_vocabulary(value).items() if k != "file"}
    if isinstance(value, functools.partial):
        parts = {"arguments": value.args, **value.keywords}
        return {"function": _describe(value.func, inside), **_describe(parts, inside)}
    if inspect.ismethod(value):
        holder = _describe(value.__self__, inside)
        return {**_describe(value.__func__, inside), "of": holder}
    if inspect.isfunction(value):
        # Decorators of libraries and of ours may keep what was read.
        if hasattr(value, "__wrapped__") and _owner(value) != "user":
            return _describe(value.__wrapped__, inside)
        return _describe_function(value, inside)
    for name in ("__wrapped__", "python_function"):  # functools.cache's, tf.function's
        if inspect.isfunction(inner := getattr(value, name, None)):
            return _describe(inner, inside)
    if hasattr(value, "find_file"):  # a folder of data files that a user names
        return _folder(value)
    if isinstance(value, seqio.LazyTfdsLoader):  # TFDS fixes what a version holds.
        return {"name": value.name, "splits": _describe(value._split_map, inside)}
    kind = {"kind": _name(type(value))}
    if isinstance(settings := getattr(value, "settings", None), dict):
        return kind | _describe(settings, inside)
    # Objects of libraries may hold handles and counters, others in each process.
    known = isinstance(value, (seqio.DataSource, seqio.Feature))
    if known or _owner(type(value)) != "library":
        cached = functools.cached_property
        held = {
            name: x
            for name, x in getattr(value, "__dict__", {}).items()
            # Cached values, made when first asked for.
            if not isinstance(getattr(type(value), name, None), cached)
        }
        return kind | _describe(held | _of_classes(type(value)), inside)
    return kind


def _of_classes(kind):
    """Members of an object's own classes: {CLASS.NAME: function or constant}."""
    found = {}
    for owner in kind.__mro__:
        if _owner(owner) != "user":
            continue
        for name, value in vars(owner).items():
            places = value, *(getattr(value, place, None) for place in _HOLDING)
            function = next(filter(inspect.isfunction, places), value)
            if inspect.isfunction(function) and has_source(function):
                found[f"{owner.__name__}.{name}"] = function
            elif isinstance(value, _CONSTANTS) and not name.startswith("__"):
                # A dictionary in small letters may keep what was read.
                if name.isupper() or not isinstance(value, dict):
                    found[f"{owner.__name__}.{name}"] = value
    return found


def _is_long(value):
    """Whether it is a list with many values that have no parts."""
    return (
        isinstance(value, (list, tuple))
        and len(value) > _LONGEST
        and all(isinstance(x, (*_PLAIN, bytes)) for x in value)
    )


def _describe_function(function, inside):
    """A function's name, and what it holds or reads besides its arguments."""
    parts, code = {}, function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            parts[name] = cell.cell_contents
        except ValueError:  # It has no value yet.
            continue
    parts |= function.__kwdefaults__ or {}
    if function.__defaults__:
        parts["defaults"] = function.__defaults__
    described = {"function": _name(function), **_describe(parts, inside)}
    owner = _owner(function)
    if owner == "library":
        return described
    for name, value in sorted(_referred(function, parts).items()):
        value = getattr(value, "__wrapped__", value)
        if inspect.isfunction(value):
            if _owner(value) != "library":
                described[name] = _describe(value, inside)
        elif hasattr(value, "find_file"):
            described[name] = _describe(value, inside)
        # A dictionary in small letters may keep what was read.
        kinds = _CONSTANTS if name.isupper() else _PLAIN
        if owner == "user" and isinstance(value, kinds):
            described[name] = _describe(value, inside)
    if owner == "user":
        return described | {"code": code_digest(function)}
    # The version stands for our own code, which may name a folder of files.
    held = {"function", *parts}
    return {k: x for k, x in described.items() if k in held or _has_files(x)}


def _referred(function, parts):
    """Returns {name: value} of what a function's code names, besides its own parts.

    It may name a module, and what the module has.
    """
    # A module's own, as __file__, say where it is.
    names = {x for x in _names_in(function.__code__) if not x.startswith("__")}
    found = {k: x for k, x in function.__globals__.items() if k in names}
    for module in (*found.values(), *parts.values()):
        if isinstance(module, types.ModuleType) and _owner(module) != "library":
            found |= {k: x for k, x in vars(module).items() if k in names}
    return found


def _names_in(code):
    names = {*code.co_names}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names


def _owner(value):
    """Returns whose a function, class or module is: "library", "user", "remixer_tf".

    The last is for tasks; all else of ours is a library.
    """
    # A decorated function has the __module__ of the inner one.
    if isinstance(value, types.ModuleType):
        module = value.__name__
    else:
        own = getattr(value, "__globals__", {"__name__": value.__module__})
        module = own.get("__name__") or ""
    if module.startswith("remixer_tf."):
        return "remixer_tf" if module.startswith("remixer_tf.tasks") else "library"
    file = getattr(sys.modules.get(module), "__file__", None)
    inner = file and any(os.path.abspath(file).startswith(x) for x in _LIBRARIES)
    return "library" if inner else "user"


def _has_files(described):
    if isinstance(described, dict):
        return any(map(_has_files, described.values()))
    if isinstance(described, list):
        return any(map(_has_files, described))
    return isinstance(described, Files)


def _name(value):
    module = getattr(value, "__module__", "")
    return f"{module}.{getattr(value, '__qualname__', value.__name__)}"


def _files_of_text(text):
    """Returns the `Files` that a text names, or None."""
    if not {*text} & {*"./"} or {*text} & {*"\n\0{}"}:
        return None
    if not re.search(r"\w", text):  # as "/" between words
        return None
    try:
        place = locate(text)
        if "://" in place:
            found = [x for x in tf.io.gfile.glob(place) if not tf.io.gfile.isdir(x)]
        elif os.path.isdir(place):
            return Files(text, _below(place)) if "/" in text else None
        else:
            found = [place] if os.path.isfile(place) else glob.glob(place)
            found = [*filter(os.path.isfile, found)]
    except (UserError, OSError, tf.errors.OpError):  # as of the address of a page
        return None
    if not found:
        return None
    folder = os.path.commonpath([os.path.dirname(path) for path in found])
    return Files(text, {os.path.relpath(x, folder or "."): x for x in sorted(found)})


def _folder(folder):
    """Returns the `Files` of a `DataFolder`."""
    try:
        place = folder.find()[0]
    except UserError:
        place = None
    return Files(folder.option, _below(place) if place else {})


def _below(folder):
    paths = (
        os.path.join(place, name)
        for place, _, names in tf.io.gfile.walk(folder)
        for name in names
    )
    return {os.path.relpath(path, folder): path for path in sorted(paths)}
