"""Gin as text: its statements, read without importing or registering anything."""

import glob
import os
import sys
import textwrap
import tokenize
from typing import Any, NamedTuple

import gin
from gin import config_parser

from remixer_tf.errors import UserError, nearest

RUN_FILE = "operative_config.gin"  # what training writes into a run's folder
# Training writes some 10 kB. A longer file of a stranger would only take time.
_MAX_BYTES = 2**20
_BRACKETS = {
    tokenize.TokenError: "a bracket is not closed",
    RecursionError: "brackets are nested too deep",
}


def scope():
    """Returns gin's current scope, "" for none: names what `@a/Name()` makes "a"."""
    return gin.current_scope_str()


def gin_folder():
    """Returns the package's folder of gin files: in the wheel, else in the checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "gin")
    return installed if os.path.isdir(installed) else f"{os.path.dirname(package)}/gin"


class Name(str):
    """A @reference or a %macro in a value, as written."""

    __repr__ = str.__str__

    @property
    def selector(self):
        """`module.Name` of "@a/module.Name()"; the macro of "%macro"."""
        return self.removesuffix("()").lstrip("@%").rpartition("/")[2]

    @property
    def owner(self):
        """`Name` of "@a/module.Name()"."""
        return self.selector.rpartition(".")[2]


class Binding(NamedTuple):
    """What sets a parameter or a macro."""

    name: str  # "a/module.Name.parameter" or "MACRO"
    selector: str  # "module.Name"; a macro itself
    parameter: str  # "" for a macro
    value: Any  # Python's, with a `Name` for each @reference and %macro
    file: str | None  # None for the command line
    place: str  # " (in FILE, line N)", for messages

    @property
    def owner(self):
        """`Name` of "a/module.Name.parameter"; a macro itself."""
        return self.selector.rpartition(".")[2]

    @property
    def names(self):
        """The `Name`s in the value, a list."""
        return _names(self.value)


class Import(NamedTuple):
    """An import of a module."""

    module: str
    text: str  # as gin text
    file: str | None
    place: str


def read_bindings(path):
    """Returns what a gin file itself binds, {name: value as gin text}."""
    statements = read_statements(path)
    return {s.name: repr(s.value) for s in statements if isinstance(s, Binding)}


def read_statements(path):
    """Returns the `Binding`s and `Import`s of a gin file, and the paths it includes.

    Raises:
        UserError: it is no gin, or larger than a configuration.
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
        parser = config_parser.ConfigParser(source, _AsWritten())
        statements = [statement for s in parser if (statement := _statement(s))]
        repr(statements)  # A huge integer fails here.
        return statements
    except SyntaxError as error:
        if not isinstance(source, str):
            text = textwrap.shorten(error.text or "", 200)
            name += f", line {error.lineno}, `{text}`"
        raise UserError(
            f"cannot read {name}. Expected: NAME = VALUE, with a Python literal, a "
            "%MACRO or a @reference."
        ) from None
    # The last two are of bytes, and of a key such as [1].
    except (tokenize.TokenError, RecursionError, ValueError, TypeError) as error:
        reason = _BRACKETS.get(type(error)) or textwrap.shorten(str(error), 200)
        raise UserError(f"cannot read {name}: {reason}.") from None


def read_all(files, bindings, folders):
    """Returns the `Binding`s and `Import`s of gin files, and then of bindings.

    Files are absolute or below one of the folders; those of Python's path come last.
    What a file includes takes the place of its `include`.

    Raises:
        UserError: a file is missing or malformed.
    """
    statements = []

    def read(path):
        for statement in read_statements(_find(path, folders)):
            if isinstance(statement, str):
                read(statement)
            else:
                statements.append(statement)

    try:
        for path in files:
            read(path)
    except RecursionError:
        raise UserError(f"the files that {path} includes include it.") from None
    for text in bindings:
        statements += read_text(text, f"--gin.{text.replace(' = ', '=', 1)}")
    return statements


def _statement(statement):
    """Returns ours for a statement of gin's; None for the head of a block."""
    file, line, *_ = statement.location
    place = f" (in {file}, line {line})" if file else ""
    if isinstance(statement, config_parser.IncludeStatement):
        return statement.filename
    if isinstance(statement, config_parser.ImportStatement):
        return Import(statement.module, statement.format(), file, place)
    if isinstance(statement, config_parser.BlockDeclaration):
        return None
    scope, selector, parameter, value, _ = statement
    name = f"{scope}/{selector}.{parameter or ''}".strip("/.")
    return Binding(name, selector, parameter or "", value, file, place)


def _names(value):
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple)):
        return [name for item in value for name in _names(item)]
    return [value] if isinstance(value, Name) else []


def _find(path, folders):
    """Returns where a gin file is, as `read_all` looks for it."""
    for folder in [*folders, *sys.path]:
        if os.path.isfile(found := os.path.join(folder, path)):
            return found
    names = [
        name
        for folder in folders
        for depth in range(4)
        for name in glob.glob("*/" * depth + "*.gin", root_dir=folder or None)
    ]
    searched = ", ".join(map(os.path.abspath, folders))
    raise UserError(
        f"there is no gin file {path!r}.{nearest(path, names)} Searched: {searched}."
    )


class _AsWritten(config_parser.ParserDelegate):
    """References and macros as the text that stands for them."""

    def configurable_reference(self, scoped_configurable_name, evaluate):
        return Name(f"@{scoped_configurable_name}{'()' if evaluate else ''}")

    def macro(self, macro_name):
        return Name(f"%{macro_name}")
