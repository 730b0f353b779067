"""Checks of the arguments that users set: one message, before anything else fails."""

import numbers
import os

from remixer_tf.errors import UserError


def check_integers(minimum=1, **arguments):
    """Raises a ValueError unless each argument is an integer of at least `minimum`."""
    for name, value in arguments.items():
        if not _is(numbers.Integral, value) or value < minimum:
            raise UserError(
                f"{name} must be an integer of at least {minimum}. Received: "
                f"{name}={value!r}"
            )


def check_numbers(minimum=0, **arguments):
    """Raises a ValueError unless each argument is a number of at least `minimum`."""
    for name, value in arguments.items():
        if not _is(numbers.Real, value) or not value >= minimum:
            raise UserError(
                f"{name} must be a number of at least {minimum}. Received: "
                f"{name}={value!r}"
            )


def check_factories(**arguments):
    """Raises a ValueError unless each argument can be called to make something."""
    for name, value in arguments.items():
        if not callable(value):
            raise UserError(
                f"{name} must be a function or class that makes it (in gin: @NAME, "
                f"without quotes). Received: {name}={value!r}"
            )


def check_paths(**arguments):
    """Raises a ValueError unless each argument is a path."""
    for name, value in arguments.items():
        try:
            valid = isinstance(value, (str, os.PathLike)) and os.fsencode(value)
        except UnicodeEncodeError:
            valid = False
        if not valid or b"\0" in valid:
            raise UserError(
                f"{name} must be the path of a file or folder. Received: "
                f"{name}={value!r}"
            )


def _is(kind, value):
    return isinstance(value, kind) and not isinstance(value, bool)
