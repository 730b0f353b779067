"""Checksums of what functions do. Every version of Python gives the same.

Bytecode differs between versions. The syntax tree of the source does not, once empty
fields, which versions have added, are left out.
"""

import ast
import functools
import hashlib
import inspect
import sys
import types


def code_digest(function):
    """Returns a checksum of a function's source, a str.

    Comments, docstrings, annotations and line numbers do not count. Without source, as
    of `eval`, it is one of the bytecode, with the version of Python, which it needs.
    """
    code = function.__code__
    if nodes := _nodes(code):
        return _digest(repr([_tree(node) for node in nodes]))
    version = ".".join(map(str, sys.version_info[:2]))
    return f"{_digest(repr(_bytecode(code, function.__doc__)))} (Python {version})"


def has_source(function):
    """Whether a function's source can be read."""
    return bool(_nodes(function.__code__))


def _digest(text):
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _nodes(code):
    """The syntax of a function."""
    try:
        lines, _ = inspect.findsource(code)
        functions = _functions("".join(lines))
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return []
    nodes = [
        node
        for node in functions
        if getattr(node, "name", "<lambda>") == code.co_name
        and _first_line(node) == code.co_firstlineno
    ]
    if len(nodes) < 2:
        return nodes
    # Lambdas in one line. Bytecode has the places of what it computes, but for some
    # versions' constants.
    places = [place for place in code.co_positions() if place[3]]
    own = [node for node in nodes if places and _holds(node.body, places)]
    return own[-1:] or nodes  # the innermost


@functools.lru_cache(maxsize=8)
def _functions(source):
    """The syntax of all functions in a source, outer ones first."""
    kinds = ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda
    return [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def _holds(body, places):
    first = body.lineno, body.col_offset
    last = body.end_lineno, body.end_col_offset
    return all(first <= (a, c) and (b, d) <= last for a, b, c, d in places)


def _first_line(node):
    """The line that bytecode gives, of a function's decorators if it has any."""
    return min(x.lineno for x in (node, *getattr(node, "decorator_list", ())))


def _tree(node, outer=True):
    """A syntax tree as lists, without what does not count."""
    if isinstance(node, list):
        return [_tree(x, False) for x in node]
    if not isinstance(node, ast.AST):
        return node
    unread = {"kind", "type_comment", "annotation", "returns"}
    if outer:
        unread |= {"decorator_list", "name"}
    fields = {k: x for k, x in ast.iter_fields(node) if k not in unread}
    if isinstance(body := fields.get("body"), list) and _is_text(body[:1]):
        fields["body"] = body[1:]  # a docstring
    if isinstance(node, ast.JoinedStr):  # 3.12 adds empty texts.
        fields["values"] = [x for x in node.values if getattr(x, "value", 0) != ""]
    kept = [(k, _tree(x, False)) for k, x in fields.items() if x not in (None, [])]
    return [type(node).__name__, *sorted(kept)]


def _is_text(statements):
    return (
        bool(statements)
        and isinstance(statements[0], ast.Expr)
        and isinstance(statements[0].value, ast.Constant)
        and isinstance(statements[0].value.value, str)
    )


def _bytecode(code, doc=None):
    """The bytecode, names and constants of a function, and of those in it."""
    constants = [
        _bytecode(constant)
        if isinstance(constant, types.CodeType)
        else _fixed(constant)
        for constant in code.co_consts
        if constant != doc
    ]
    return [code.co_code, code.co_names, constants]


def _fixed(value):
    """The text of a constant; of a set, which each process orders anew, sorted."""
    if isinstance(value, (tuple, frozenset)):
        parts = [*map(_fixed, value)]
        return repr(parts if isinstance(value, tuple) else sorted(parts))
    return repr(value)
