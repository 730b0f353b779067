"""Gin as text: its statements, read without importing or registering anything."""

import os
import sys
import textwrap
import tokenize

import gin
from gin import config_parser

from remixer_tf.errors import UserError, nearest

RUN_FILE = "operative_config.gin"  # what training writes into a run's folder
# Training writes some 10 kB. A longer file of a stranger would only take time.
_MAX_BYTES = 2**20


def scope():
    """The gin scope it is called in, "" for none: names what `@a/Name()` makes "a"."""
    return gin.current_scope_str()


def gin_folder():
    """Returns the package's folder of gin files: in the wheel, else in the checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "gin")
    if os.path.isdir(installed):
        return installed
    return os.path.join(os.path.dirname(package), "gin")


class Name(str):
    """A @reference or a %macro in a value, as written."""

    __repr__ = str.__str__

    @property
    def selector(self):
        """"module.Name" of "@a/module.Name()"."""
        return self.removesuffix("()").lstrip("@%").rpartition("/")[2]


def read_bindings(path):
    """Reads a gin file without registering, importing or binding anything.

    Args:
        path: str, a file whose includes do not count, such as a run's
            operative_config.gin.

    Returns:
        dictionary of names, such as "a/Name.parameter" or "MACRO", to their values as
        gin text. Of a name that is bound twice the last value counts.

    Raises:
        UserError: it is no gin.
    """
    statements = read_statements(path)
    return {name_of(s): repr(s.value) for s in statements if is_binding(s)}


def read_statements(path):
    """Reads a gin file; nothing is imported or included.

    Returns:
        list of the statements of `gin.config_parser`, with a `Name` for each @reference
        and %macro.

    Raises:
        UserError: it is no gin, or larger than a configuration.
    """
    if os.path.getsize(path) > _MAX_BYTES:
        raise UserError(
            f"{path} is larger than {_MAX_BYTES:,} bytes: no configuration."
        )
    try:
        with open(path, encoding="utf-8") as file:  # As for gin.
            return list(config_parser.ConfigParser(file, _AsWritten()))
    except SyntaxError as error:
        where = error.args[1]
        line, source = (where[1], where[3]) if isinstance(where, tuple) else ("?", "")
        source = textwrap.shorten(source or "", 200)
        raise UserError(
            f"cannot read {path}, line {line}, `{source}`. {_EXPECTED}"
        ) from None
    except tokenize.TokenError:
        raise UserError(f"cannot read {path}: a bracket is not closed.") from None
    except (ValueError, TypeError, OSError) as error:  # bytes; a key such as [1]
        reason = textwrap.shorten(str(error), 200)
        raise UserError(f"cannot read {path}: {reason}.") from None
    except RecursionError:
        raise UserError(f"cannot read {path}: brackets are nested too deep.") from None


def read_all(files, bindings, folders):
    """Reads gin files, all that they include, and then bindings.

    Args:
        files: list of paths, each absolute or below one of the folders.
        bindings: list of str, such as "train.seed = 1".
        folders: list of folders. Those of Python's path come after them.

    Returns:
        list of bindings and imports as `read_statements` returns them, in order.

    Raises:
        UserError: a file is missing or malformed.
    """
    statements = []

    def read(path):
        for statement in read_statements(_find(path, folders)):
            if isinstance(statement, config_parser.IncludeStatement):
                read(statement.filename)
            else:
                statements.append(statement)

    try:
        for path in files:
            read(path)
    except RecursionError:
        raise UserError(f"the files that {path} includes include it.") from None
    for text in bindings:
        statements += _read_binding(text)
    return statements


def is_binding(statement):
    """Whether a statement sets a parameter or a macro."""
    return isinstance(statement, config_parser.BindingStatement)


def name_of(binding):
    """Returns what a binding sets: "a/Name.parameter" or "MACRO"."""
    scope, selector, parameter, *_ = binding
    scoped = f"{scope}/{selector}" if scope else selector
    return f"{scoped}.{parameter}" if parameter else scoped


def owner_of(binding):
    """Returns `Name` of "a/module.Name.parameter"; a macro itself."""
    return binding.selector.rpartition(".")[2]


def strings_in(value):
    """Yields every `Name` and every other string in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from strings_in([*value, *value.values()])
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings_in(item)


_EXPECTED = "Expected: NAME = VALUE, with a Python literal, a %MACRO or a @reference."


def _read_binding(text):
    """Reads a binding of the command line."""
    try:
        return list(config_parser.ConfigParser(text, _AsWritten()))
    except (SyntaxError, tokenize.TokenError, ValueError, TypeError, RecursionError):
        name, _, value = text.partition(" = ")
        raise UserError(f"cannot read --gin.{name}={value}. {_EXPECTED}") from None


def _find(path, folders):
    """Returns where a gin file is, as `read_all` looks for it."""
    for folder in [*folders, *sys.path]:
        if os.path.isfile(found := os.path.join(folder, path)):
            return found
    names = {name for folder in folders for name in _gin_files(folder or os.curdir)}
    searched = ", ".join(os.path.abspath(folder) for folder in folders)
    raise UserError(
        f"there is no gin file {path!r}.{nearest(path, names)} Searched: {searched}."
    )


def _gin_files(root):
    """Yields paths of gin files below a folder, to a depth of three folders."""
    for path, below, names in os.walk(root):
        below[:] = [name for name in below if not name.startswith(".")]
        relative = os.path.relpath(path, root)
        if relative.count(os.sep) >= 2:
            below.clear()
        for name in names:
            if name.endswith(".gin"):
                yield os.path.normpath(os.path.join(relative, name))


class _AsWritten(config_parser.ParserDelegate):
    """References and macros as the text that stands for them."""

    def configurable_reference(self, scoped_configurable_name, evaluate):
        return Name(f"@{scoped_configurable_name}{'()' if evaluate else ''}")

    def macro(self, macro_name):
        return Name(f"%{macro_name}")
