"""Bindings of gin files, read without running anything; and the scope of now."""

import os
import tokenize

import gin
from gin import config_parser

from remixer_tf.configuration.errors import UserError, explain_syntax

# Training writes some 10 kB. A longer file of a stranger would only take time.
_MAX_BYTES = 2**20


def scope():
    """The gin scope it is called in, "" for none: names what `@a/Name()` makes "a"."""
    return gin.current_scope_str()


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
    return {name: value for name, value, _ in _bound(read_statements(path))}


def read_in_order(text, open_file):
    """Yields what gin text binds, in order, as (name, value as text, name of the file).

    Args:
        text: str, or an open file.
        open_file: a function from the path of an include to an open file.

    Raises:
        SyntaxError, tokenize.TokenError: it is no gin.
    """
    for statement in config_parser.ConfigParser(text, _AsWritten()):
        if isinstance(statement, config_parser.IncludeStatement):
            with open_file(statement.filename) as file:
                yield from read_in_order(file, open_file)
        yield from _bound([statement])


def _bound(statements):
    """Yields what `read_in_order` does, of statements."""
    for statement in statements:
        if isinstance(statement, config_parser.BindingStatement):
            scope, selector, parameter, value, location = statement
            scoped = f"{scope}/{selector}" if scope else selector
            name = f"{scoped}.{parameter}" if parameter else scoped
            yield name, repr(value), location.filename


def read_statements(path):
    """Reads a gin file as `read_bindings` does: nothing is imported or included.

    Args:
        path: str.

    Returns:
        list of the statements of `gin.config_parser`; @references and %macros are str.

    Raises:
        UserError: it is no gin, or larger than a configuration.
    """
    if os.path.getsize(path) > _MAX_BYTES:
        raise UserError(
            f"{path} is larger than {_MAX_BYTES:,} bytes: no configuration."
        )
    try:
        with open(path, encoding="utf-8") as file:  # As for gin.
            statements = list(config_parser.ConfigParser(file, _AsWritten()))
        repr(statements)  # Fails of a huge integer, as who reads the values would.
        return statements
    except (SyntaxError, tokenize.TokenError) as error:
        raise UserError(explain_syntax(error)) from None
    except (ValueError, TypeError) as error:  # bytes; a key such as [1]
        raise UserError(f"cannot read {path}: {error}.") from None
    except RecursionError:
        raise UserError(f"cannot read {path}: brackets are nested too deep.") from None


class _AsWritten(config_parser.ParserDelegate):
    """References and macros as the text that stands for them."""

    def configurable_reference(self, scoped_configurable_name, evaluate):
        return _Name(f"@{scoped_configurable_name}{'()' if evaluate else ''}")

    def macro(self, macro_name):
        return _Name(f"%{macro_name}")


class _Name(str):
    __repr__ = str.__str__
