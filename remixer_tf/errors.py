"""Errors of a user's mistakes, and checks of what the user set.

A check's one message comes before anything else fails.
"""

import contextlib
import difflib
import importlib
import inspect
import math
import numbers
import os
import re

# Around a message that an operation of TensorFlow's fails with.
QUOTE_START, QUOTE_END = "data error <<", ">>"
_QUOTED = re.compile(
    rf"^remixer_tf\.errors\.(?P<kind>\w+): (?P<line>.*)$"
    rf"|{QUOTE_START}(?P<text>(?s:.*?)){QUOTE_END}",
    re.MULTILINE,
)
_SHOWN = 5  # names in a message


class UserError(ValueError):
    """A mistake that the user can correct. Commands show its message, no traceback.

    gin, Keras and AutoGraph (in the functions of `tf.data` and `tf.function`) change an
    error that passes through them. They leave this one as it is.
    """

    # Keras and AutoGraph change nothing that has these attributes.
    _keras_call_info_injected = True
    ag_pass_through = True

    def __init__(self, message):
        # Errors of libraries, which some messages quote, have several lines.
        super().__init__(" ".join(map(str.strip, str(message).splitlines())))

    def __init_subclass__(cls):
        # gin raises an error anew, in a class of its own whose text says what gin
        # called. Making one gives back the error itself.
        if {"__str__", "__getattr__"} <= vars(cls).keys():
            error = inspect.getclosurevars(cls.__getattr__).nonlocals["exception"]
            cls.__new__ = lambda cls: error


class MissingFileError(UserError, FileNotFoundError):
    """A file or folder that the user names does not exist."""


class ExistingFileError(UserError, FileExistsError):
    """The file or folder to write exists already."""


class StorageError(UserError, OSError):
    """A file cannot be read or written."""


class NotFiniteError(UserError, FloatingPointError):
    """The loss or a gradient of a training step is not finite."""


class MissingLibraryError(UserError, ImportError):
    """An optional library is not installed."""


@contextlib.contextmanager
def quoted_errors():
    """Around what runs TensorFlow: a `UserError` that it quotes is raised as itself."""
    try:
        yield
    except Exception as error:
        if found := quoted(error):
            raise found from None
        raise


def quoted(error):
    """Returns the `UserError` that an error of TensorFlow's quotes, or None.

    If Python that a dataset or a graph calls raises one, as in `from_generator`,
    TensorFlow makes it a text of many lines. An operation can fail with a message
    between `QUOTE_START` and `QUOTE_END`.
    """
    if not type(error).__module__.startswith("tensorflow."):
        return None
    return quoted_in(str(error))


def quoted_in(text):
    """Returns the last `UserError` that a traceback or message quotes, or None."""
    *_, found = (None, *_QUOTED.finditer(text))
    if found is None:
        return None
    kind = globals().get(found["kind"] or "", UserError)
    return kind(found["line"] or found["text"])


def library(module, what, extra):
    """Imports a module of an optional library, or says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingLibraryError(
            f"{what} needs {module}, which cannot be imported ({error}). Install it: "
            f"python -m pip install 'remixer_tf[{extra}]'"
        ) from None


def too_old(error):
    """Returns the message of an error of protobuf's version, else None.

    The modules that libraries generate, as sentencepiece, need at least the protobuf
    that generated them. pip does not know.
    """
    if type(error).__name__ != "VersionError":
        return None
    return f"protobuf is too old: {error} Run: python -m pip install -U protobuf"


def nearest(name, names):
    """Returns ' Nearest: a, b.', or '' if nothing is near."""
    by_lower = {known.lower(): known for known in sorted(names)}
    close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    return f" Nearest: {', '.join(by_lower[n] for n in close)}." if close else ""


def shorten(names, between=", "):
    """Returns the first five of a list of str, joined, and the number of the others."""
    more = len(names) - _SHOWN
    return between.join(names[:_SHOWN] + [f"and {more:,} more"] * (more > 0))


def printable(text):
    """Returns text with control characters as escapes: names may have them."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def check_integers(minimum=1, /, **arguments):
    """Raises a ValueError unless each argument is an integer of at least `minimum`."""
    least = f" of at least {minimum}" if minimum > -math.inf else ""
    for name, value in arguments.items():
        if not _is(numbers.Integral, value) or value < minimum:
            raise UserError(
                f"{name} must be an integer{least}. Received: {name}={value!r:.200}"
            )


def check_numbers(minimum=0, /, **arguments):
    """Raises a ValueError unless each argument is a number of at least `minimum`."""
    for name, value in arguments.items():
        if not _is(numbers.Real, value) or not value >= minimum:
            raise UserError(
                f"{name} must be a number of at least {minimum}. Received: "
                f"{name}={value!r}"
            )


def check_range(name, value, expected, is_valid):
    """Raises a ValueError unless `value` is a finite number that `is_valid` accepts."""
    number = _is(numbers.Real, value) and math.isfinite(value)
    if not number or not is_valid(value):
        raise UserError(f"{name} must be {expected}. Received: {name}={value!r}")


def check_choices(choices, /, **arguments):
    """Raises a ValueError unless each argument is one of the choices."""
    for name, value in arguments.items():
        # 1 is not True.
        kind = bool if is_numpy_bool(value) else type(value)
        if not any(issubclass(kind, type(c)) and value == c for c in choices):
            words = [c for c in choices if isinstance(c, str)]
            near = nearest(value, words) if isinstance(value, str) else ""
            raise UserError(
                f"{name} must be one of {', '.join(map(str, choices))}. Received: "
                f"{name}={value!r:.200}.{near}"
            )


def check_flags(**arguments):
    """Raises a UserError unless each argument is True or False."""
    for name, value in arguments.items():
        if not isinstance(value, bool) and not is_numpy_bool(value):
            raise UserError(
                f"{name} must be True or False. Received: {name}={value!r:.200}"
            )


def check_factories(**arguments):
    """Raises a ValueError unless each argument can be called to make something."""
    for name, value in arguments.items():
        if not callable(value):
            raise UserError(
                f"{name} must be a function or class that makes it (in gin: @NAME, "
                f"without quotes). Received: {name}={value!r}"
            )


def check_evaluations(evaluations):
    """Raises a ValueError unless it is a list of evaluations."""
    if not isinstance(evaluations, (list, tuple)) or not all(
        hasattr(evaluation, "period") for evaluation in evaluations
    ):
        raise UserError(
            "evaluations must be a list (in gin: [@LossEvaluation(), ...], each with "
            f"its brackets). Received: evaluations={evaluations!r:.200}"
        )


def check_paths(**arguments):
    """Raises a ValueError unless each argument is a path."""
    for name, value in arguments.items():
        try:
            valid = isinstance(value, (str, os.PathLike)) and os.fspath(value).encode()
        except (AttributeError, UnicodeEncodeError):
            valid = False
        if not valid or b"\0" in valid:
            raise UserError(
                f"{name} must be the path of a file or folder, in UTF-8. Received: "
                f"{name}={value!r}"
            )


def check_unicode(text):
    """Raises a UserError for a str that UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"a text has an unpaired surrogate, {text[error.start]!r}, which is no "
            f"character. Read files with encoding='utf-8'. Received: {text!r:.200}"
        ) from None


def is_numpy_bool(value):
    """Whether a value is a bool of NumPy, which is not imported for it."""
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__.startswith("bool")


def _is(kind, value):
    return isinstance(value, kind) and not isinstance(value, bool)
