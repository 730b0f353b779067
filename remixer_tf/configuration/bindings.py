"""Gin as text: its statements, read without importing or registering anything.

They are those of gin's parser: `BindingStatement`, `ImportStatement`,
`IncludeStatement`. In a binding's value each @reference and %macro is a `Name`.
"""

import glob
import math
import os
import re
import sys
import textwrap
import threading
import tokenize

import gin
from gin import config_parser
from gin.config_parser import BindingStatement, BlockDeclaration, IncludeStatement

import remixer_tf
from remixer_tf.arguments import as_python
from remixer_tf.errors import UserError, nearest

RUN_FILE = "operative_config.gin"  # what training writes into a run's folder
# Python 3.11 counts for all threads together how deep the text is that `ast` reads, and
# takes it for an error when two threads read.
_PARSING = threading.Lock()
# Training writes some 10 kB. Reading a stranger's huge file would take long.
_MAX_BYTES = 2**20


def scope():
    """In gin text `@scope()` names what `@a/Name()` makes "a"."""
    return gin.current_scope_str()


def gin_folder():
    """Returns the folder of gin files, which is next to that of the tasks."""
    return os.path.join(remixer_tf.__path__[-1], "gin")


class Name(str):
    """A @reference or a %macro in a value, as written."""

    __repr__ = str.__str__


def last(name):
    """Returns `Name` of "@a/module.Name()", of "module.Name" and of "%a/Name"."""
    return re.split("[@%/.]", name.removesuffix("()"))[-1]


def name_of(binding):
    """Returns "a/module.Name.parameter", or the name of a macro."""
    scope, selector, parameter, *_ = binding
    return f"{scope}/{selector}.{parameter or ''}".strip("/.")


def place_of(statement):
    """Returns " (in FILE, line N)", or "" for the command line."""
    file, line, *_ = statement.location
    return f" (in {file}, line {line})" if file else ""


def names_in(value):
    """Returns the `Name`s in a value, also those that are keys, a list."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple)):
        return [name for item in value for name in names_in(item)]
    return [value] if isinstance(value, Name) else []


def literal(value):
    """Returns a value as gin text. An infinite number is 1e400: gin reads no `inf`.

    NumPy's numbers are written as Python's.
    """
    value = as_python(value)
    if isinstance(value, float) and math.isinf(value):
        return "1e400" if value > 0 else "-1e400"
    if isinstance(value, complex) and not value.real:
        return f"{literal(value.imag)}j"
    if type(value) is dict:
        pairs = (f"{literal(key)}: {literal(item)}" for key, item in value.items())
        return f"{{{', '.join(pairs)}}}"
    if type(value) is list:
        return f"[{', '.join(map(literal, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    return repr(value)


def final_bindings(statements):
    """Returns {name: binding}: the last binding of each name, in their order."""
    final = {}
    for statement in statements:
        if isinstance(statement, BindingStatement):
            final.pop(name_of(statement), None)
            final[name_of(statement)] = statement
    return final


def read_bindings(path):
    """Returns what a gin file itself binds, {name: value as gin text}."""
    final = final_bindings(read_statements(path))
    return {name: literal(binding.value) for name, binding in final.items()}


def read_statements(path):
    """Returns the statements of a gin file, without the heads of its blocks.

    Raises a UserError if it is no gin, or larger than a configuration.
    """
    try:
        if os.path.getsize(path) > _MAX_BYTES:
            raise UserError(f"{path} is larger than {_MAX_BYTES:,} bytes: no gin file.")
        with open(path, encoding="utf-8") as file:  # As for gin.
            return read_text(file, str(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error}.") from None


def read_text(source, name):
    """As `read_statements`, of an open file or a str, which errors call `name`."""
    try:
        with _PARSING:
            statements = list(_Parser(source, _AsWritten()))
        repr(statements)  # A huge integer fails here.
    except SyntaxError as error:
        if not isinstance(source, str):
            text = textwrap.shorten(error.text or "", 200)
            name += f", line {error.lineno}, `{text}`"
        raise UserError(
            f"cannot read {name}. Expected: NAME = VALUE, with a Python literal, a "
            "%MACRO or a @reference."
        ) from None
    except (tokenize.TokenError, RecursionError, ValueError, TypeError) as error:
        reason = textwrap.shorten(str(error), 200)  # bytes, or a key such as [1]
        if isinstance(error, (tokenize.TokenError, RecursionError)):
            reason = "a bracket is not closed, or brackets are nested too deep"
        raise UserError(f"cannot read {name}: {reason}.") from None
    for statement in statements:
        if getattr(statement, "module", "").startswith("__gin__."):
            raise UserError(
                f"{name} turns on gin's dynamic registration, which could call any "
                "function. Write @gin.register above yours, and import its module."
            )
    return [s for s in statements if not isinstance(s, BlockDeclaration)]


def read_all(files, bindings, folders):
    """Returns the bindings and imports of gin files, and then of texts of bindings.

    Files are absolute or below one of the folders; those of Python's path come last. An
    included file takes the place of its `include`. Raises a UserError if a file is
    missing or malformed.
    """
    statements = [s for path in files for s in _with_included(path, folders)]
    for text in bindings:
        name = flag_of(text)
        for statement in read_text(text, name):
            if isinstance(statement, IncludeStatement):
                raise UserError(f"cannot read {name}: a gin file may include others.")
            statements.append(statement)
    return statements


def flag_of(binding):
    """Returns "--gin.NAME=VALUE" of "NAME = VALUE"."""
    return f"--gin.{binding.replace(' = ', '=', 1)}"


def _with_included(path, folders, outer=()):
    place = find(path, folders)
    if place in outer:
        raise UserError(f"{path} is included by a file that it includes.")
    for statement in read_statements(place):
        if isinstance(statement, IncludeStatement):
            yield from _with_included(statement.filename, folders, [*outer, place])
        else:
            yield statement


def folders_of_gin(search_paths):
    """Returns the folders where gin files are, in the order in which `find` looks."""
    return ["", *search_paths, gin_folder()]


def find(path, folders):
    """Returns where a gin file is. Raises a UserError if there is none."""
    places = [os.path.join(folder, path) for folder in [*folders, *sys.path]]
    if found := next(filter(os.path.isfile, places), None):
        return found
    if found := next(filter(os.path.isdir, places), None):
        names = sorted(glob.glob("*.gin", root_dir=found))
        has = f", such as {os.path.join(path, names[0])}" if names else ""
        raise UserError(f"{path!r} is a folder. Name a gin file in it{has}.")
    names = {  # In a checkout two folders have the package's files.
        os.path.realpath(os.path.join(folder, name)): name
        for folder in folders
        for depth in range(4)
        for name in glob.glob("*/" * depth + "*.gin", root_dir=folder or None)
    }
    searched = ", ".join(map(os.path.abspath, folders))
    raise UserError(
        f"there is no gin file {path!r}.{nearest(path, names.values())} "
        f"Searched: {searched}."
    )


class _Parser(config_parser.ConfigParser):
    """Gin's parser. A key that a dictionary has twice is a ValueError."""

    _keys = ()

    def _maybe_parse_container(self):
        outer, self._keys = self._keys, []
        result = super()._maybe_parse_container()
        self._keys = outer
        return result

    def _parse_dict_item(self):
        key, value = super()._parse_dict_item()
        if key in self._keys:
            line = self._current_token.start[0]
            raise UserError(f"line {line} gives {key!r} twice in a dictionary")
        self._keys.append(key)
        return key, value


class _AsWritten(config_parser.ParserDelegate):
    """References and macros as the text that stands for them."""

    def configurable_reference(self, scoped_configurable_name, evaluate):
        return Name(f"@{scoped_configurable_name}{'()' if evaluate else ''}")

    def macro(self, macro_name):
        return Name(f"%{macro_name}")
