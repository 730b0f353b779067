"""Text of a table's cell, by one rule for all formats.

| cell | text |
|---|---|
| text | itself |
| bytes | their UTF-8; a ValueError if they are not UTF-8 |
| integer, decimal | plain digits: `1000`, `1.50` |
| float | the shortest number that its precision reads back: float32 3.8 is `3.8` |
| boolean | `true`, `false` |
| date, time, timestamp | ISO 8601 with a space: `2024-05-01 12:30:00+02:00` |
| duration | `1 day, 2:00:00` |
| list, struct, map | JSON |
| null, NaN | None: the value is missing |

Categories (Arrow's dictionaries) are their values.
"""

import datetime
import decimal
import json
import math
import re
import sys

import numpy as np

from remixer_tf.errors import UserError

_NUMBERS = "bcdeEfFgGnoxX%"  # the last letter of Python's formats for numbers
# Formats that write a text as it stands, such as ">5", "*^9", "8s" and ".2s".
_OF_TEXT = re.compile(r".?[<>^]\d*|(.?[<>^])?\d*(\.\d+)?s", re.DOTALL)
# The parts of Python's formats for dates, for times, and for time zones.
_OF_DATE, _OF_TIME = {*"aAbBcCdDeFgGhjmuUVwWxyY"}, {*"cfHIklMpPrRSTX"}
_OF_ZONE = {*"zZ"}
_PARTS = {f"%{x}" for x in _OF_DATE | _OF_TIME | _OF_ZONE | {*"fnt%"}}
_PARTS |= {f"%-{x}" for x in _OF_DATE | _OF_TIME if x != "f"}  # without a leading 0
if sys.version_info >= (3, 12):
    _PARTS.add("%:z")


class TooLarge:
    """A number that float64 cannot hold, as JSON writes it; `cell_text` refuses it."""

    def __init__(self, digits):
        self.digits = digits


def cell_text(value, spec=""):
    """Returns the text of a cell; None for a missing value.

    `value` is what JSON or `column_values` gives. `spec` is a format of Python's, such
    as ".1f" or "%d %B". It reads the text that the cell has without one, so all kinds
    of files agree. The text is a number if it reads as one, else a date or time (ISO
    8601), else text. An alignment (">5") or an "s" (".2s") takes it as it stands. To
    the letters of numbers, "true" is 1 and "false" 0.
    A ValueError says what is wrong with the cell, without its place.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, TooLarge):
        raise UserError(f"a number that is too large ({value.digits:.20})")
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise UserError("invalid UTF-8") from None
    text = _formatted(value, spec) if spec else _plain(value)
    if not is_utf8(text):
        raise UserError("invalid UTF-8")  # as JSON's "\ud800"
    return text


def check_format(spec):
    """Raises a UserError for a format of dates that systems write differently.

    Some have parts of their own, and others write these as they stand.
    """
    if "%" not in spec or _formats(spec, 1.0) or _formats(spec, ""):
        return
    for part in re.findall("%:z|%-?.?", spec, re.DOTALL):
        if part not in _PARTS:
            raise UserError(
                f"the format {spec!r} has {part!r}, which not every system writes. "
                "Take Python's own parts, such as %d %B %Y or %H:%M"
            )


def _formats(spec, value):
    try:
        format(value, spec)
    except ValueError:
        return False
    return True


def is_utf8(text):
    """Whether a text has no lone surrogates, as `read_text` makes of other bytes."""
    try:
        text.encode()  # ten times as fast as a search for them
    except UnicodeEncodeError:
        return False
    return True


def _plain(value):
    if isinstance(value, str):
        return value
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (bool, list, tuple, dict)):
        return json.dumps(_without_nan(value), ensure_ascii=False, default=cell_text)
    return str(value)


def _without_nan(value):
    if isinstance(value, dict):
        return {name: _without_nan(x) for name, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(x) for x in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _formatted(value, spec):
    text = _plain(value)
    kinds = [str] if _OF_TEXT.fullmatch(spec) else [_int, _float, _whole, _moment, str]
    if spec[-1] in _NUMBERS:
        text = {"true": "1", "false": "0"}.get(text, text)
    for kind in kinds:
        try:
            read = kind(text)
            if hasattr(read, "strftime"):
                _check_moment(read, spec)
            return format(read, spec)
        except (ValueError, OverflowError):
            continue
    raise UserError(f"a value that the format {spec!r} cannot write")


def _int(text):
    if "_" in text:  # Python takes 1_0 for 10; a table has it as text.
        raise ValueError
    return int(text)


def _float(text):
    number = float(text)
    if "_" in text or not math.isfinite(number):  # "nan" is no number to write.
        raise ValueError
    return number


def _whole(text):
    """A whole float as int: missing values make floats of a column of integers."""
    number = _float(text)
    if not number.is_integer():
        raise ValueError
    return int(number)


def _moment(text):
    """The date, the date and time, or the time of day in a text of ISO 8601."""
    kinds = [datetime.date, datetime.datetime]
    if ":" in text:  # "12" is a number.
        kinds.append(datetime.time)
    for kind in kinds:
        try:
            return kind.fromisoformat(text)
        except ValueError:
            continue
    raise ValueError


def _check_moment(moment, spec):
    """Raises a ValueError for a format of numbers, or of what a date or time lacks.

    A date would write any other format as it stands, a time's day as 01, and a zone
    that is not known as nothing.
    """
    parts = {*re.findall("%[-:]?([A-Za-z])", spec)}
    lacks = set()
    if isinstance(moment, datetime.time):
        lacks = _OF_DATE
    elif not isinstance(moment, datetime.datetime):
        lacks = _OF_TIME
    if getattr(moment, "tzinfo", None) is None:
        lacks = lacks | _OF_ZONE
    if not parts or parts & lacks:
        raise ValueError


def column_values(column):
    """Returns the values of a `pyarrow.ChunkedArray`, a list, for `cell_text`."""
    import pyarrow

    types = pyarrow.types
    unit = getattr(column.type, "unit", None)
    if unit == "ns":  # Python's own types have microseconds.
        try:
            if types.is_timestamp(column.type):
                column = column.cast(pyarrow.timestamp("us", column.type.tz))
            elif types.is_time(column.type):
                column = column.cast(pyarrow.time64("us"))
            else:
                column = column.cast(pyarrow.duration("us"))
        except pyarrow.ArrowInvalid:
            if not types.is_duration(column.type):
                column = column.cast(pyarrow.string())
    values = column.to_pylist()
    shorten = _shortener(column.type, types)
    return [*map(shorten, values)] if shorten else values


def _shortener(type, types):
    """A function that makes float16 and float32 in values short; None if none is."""
    if types.is_float16(type) or types.is_float32(type):
        short = np.float16 if types.is_float16(type) else np.float32
        return lambda x: x if x is None else float(str(short(x)))
    if types.is_dictionary(type):
        return _shortener(type.value_type, types)
    if types.is_map(type):
        key, item = (_shortener(x, types) for x in (type.key_type, type.item_type))
        key, item = key or _same, item or _same
        return lambda pairs: pairs and [(key(k), item(x)) for k, x in pairs]
    if types.is_struct(type):
        parts = {field.name: _shortener(field.type, types) or _same for field in type}
        return lambda row: row and {name: parts[name](x) for name, x in row.items()}
    if types.is_run_end_encoded(type):
        return _shortener(type.value_type, types)
    lists = "list", "large_list", "fixed_size_list", "list_view", "large_list_view"
    if any(getattr(types, f"is_{kind}")(type) for kind in lists):
        inner = _shortener(type.value_type, types)
        return inner and (lambda values: values and [*map(inner, values)])
    return None


def _same(value):
    return value
