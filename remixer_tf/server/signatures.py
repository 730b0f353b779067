"""Signatures: functions of rows of values, by which a model is asked."""

import base64
import binascii
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from remixer_tf.errors import nearest
from remixer_tf.server.limits import invalid

NEEDED = object()  # the default of an input that each request must give
IMAGE = "image_bytes"  # the input that is a file, and no text


class Tensor(NamedTuple):
    """An input or output of a signature.

    Attributes:
        dtype: str, "string" or NumPy's name.
        shape: tuple of ints, that of one row; None is any size.
        default: what a request may leave out; `NEEDED` if it may not.
        low, high: the least and greatest number of an input; None for any.
    """

    dtype: str
    shape: tuple = ()
    default: Any = NEEDED
    low: Any = None
    high: Any = None


class Signature(NamedTuple):
    """A function of rows.

    Attributes:
        inputs, outputs: dictionaries of `Tensor`s.
        compute: function of a list of rows, dictionaries of values, which returns a
            list of dictionaries. Strings are bytes.
        sizes: tuple of ints, the numbers of rows that it computes; rows are repeated to
            fill up the next one. They rise.
        group: function of a row. Rows whose groups are equal are computed together.
        extra: names of outputs that other protocols than the calls leave out.
    """

    inputs: dict
    outputs: dict
    compute: Callable
    sizes: tuple
    group: Callable = lambda row: None


def padded(signature, rows):
    """Returns rows, the last one repeated until their number is a size."""
    size = next(size for size in signature.sizes if size >= len(rows))
    return rows + rows[-1:] * (size - len(rows))


def how_many(sizes, waiting):
    """Returns how many of the waiting rows to compute now.

    More than fit leave the largest size. Fewer fill up the next size if they are half
    of it at least; else those that fill a smaller one come first.
    """
    if waiting >= sizes[-1]:
        return sizes[-1]
    above = next(size for size in sizes if size >= waiting)
    below = max((size for size in sizes if size <= waiting), default=above)
    return waiting if 2 * waiting >= above else below


def read_row(signature, given, limits):
    """Returns a row of a signature from what a request gives, checked.

    `given` is a dictionary of values of JSON, or of NumPy. Raises a `Refusal`.
    """
    for name in given:
        if name not in signature.inputs:
            raise invalid(
                f"There is no input {name!r:.80}.{nearest(str(name), signature.inputs)}"
                f" There are: {', '.join(signature.inputs)}."
            )
    row = {}
    for name, spec in signature.inputs.items():
        if name in given:
            row[name] = read_value(name, spec, given[name], limits)
        elif spec.default is NEEDED:
            raise invalid(f"The input {name!r} is missing.")
        else:
            row[name] = spec.default
    return row


def read_value(name, spec, value, limits):
    """Returns one row's value of an input, checked: bytes, a number, or an array."""
    if spec.dtype == "string":
        return text_bytes(name, value, limits, name == IMAGE)
    array = as_array(name, spec, value)
    if not spec.shape:
        number = array.item()
        if (
            spec.low is not None
            and number < spec.low
            or (spec.high is not None and number > spec.high)
        ):
            raise invalid(
                f"{name} must be {spec.low} to {spec.high}. Received: {number!r:.40}"
            )
    return array


def as_array(name, spec, value):
    """Returns a number or nested lists as an array of an input's type and shape."""
    wanted = "a number" if not spec.shape else f"an array of {list(spec.shape)}"
    wrong = invalid(f"{name} must be {wanted} of type {spec.dtype}.")
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        raise wrong from None
    kinds = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}[np.dtype(spec.dtype).kind]
    if array.dtype.kind not in kinds or array.ndim != len(spec.shape):
        raise wrong
    fits = [n in (None, size) for n, size in zip(spec.shape, array.shape, strict=True)]
    if not all(fits) or not array.size:
        raise wrong
    if array.dtype.kind in "iu" and np.dtype(spec.dtype).kind in "iu":
        range_of = np.iinfo(spec.dtype)
        if int(array.min()) < range_of.min or int(array.max()) > range_of.max:
            raise wrong
    with np.errstate(over="ignore"):
        found = array.astype(spec.dtype)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise invalid(f"{name} must be finite.")
    return found


def text_bytes(name, value, limits, is_image=False):
    """Returns a text, or what `{"b64": ..}` holds, as bytes.

    `is_image` leaves the length of the latter to the limit of a request's bytes.
    """
    if isinstance(value, dict) and value.keys() == {"b64"}:
        try:
            value = base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise invalid(f"{name}: b64 is no base64.") from None
    text = value
    if isinstance(value, bytes):
        text = "" if is_image else value.decode("utf-8", "replace")
    if isinstance(text, str) and len(text) > limits.max_characters:
        raise invalid(
            f"{name} has {len(text):,} characters. The most: {limits.max_characters:,}."
        )
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise invalid(
                f"{name} has an unpaired surrogate, which is no character."
            ) from None
    if not isinstance(value, bytes):
        raise invalid(f"{name} must be a text.")
    return value


def as_json(value):
    """Returns a row's value as JSON has it; null for a number that is not finite."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, np.ndarray):
        return as_json(value.tolist())
    if isinstance(value, (list, tuple)):
        return [as_json(x) for x in value]
    if isinstance(value, dict):
        return {name: as_json(x) for name, x in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
