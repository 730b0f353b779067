"""Reads the files of tables: TSV, CSV, JSON lines, Arrow and Parquet.

A line of a .tsv (or .txt) file is split at its tabs; quotes have no meaning there. A
.csv file is read by Python's csv module, so quoted cells may hold commas and line ends.
A line of a .jsonl (or .ndjson) file is an object. Names may end in .gz. A folder is
what Hugging Face's `Dataset.save_to_disk` writes, or one of .parquet files.
"""

import collections
import csv
import io
import json
import math
import os
import re
import sys
from typing import NamedTuple

import tensorflow as tf
from absl import logging

from remixer_tf.arguments import Texts, checked
from remixer_tf.checkpoints.paths import locate
from remixer_tf.data.failures import files_near
from remixer_tf.errors import MissingFileError, MissingLibraryError, UserError, shorten
from remixer_tf.tasks.cells import TooLarge, cell_text, column_values, is_utf8
from remixer_tf.tasks.folders import files_of, read_bytes

_ARROW = (".arrow", ".parquet")


class Line(NamedTuple):
    """A row of a file, or a line of a row of several lines that cannot be read."""

    number: int  # from 1, of the line where it starts; in Arrow and Parquet of the row
    values: dict | None  # column -> cell, for `cell_text`
    problem: str | None = None  # why there are no values

    def text(self, column, spec=""):
        """Returns the text of a cell, see `cell_text`; None if it is missing."""
        try:
            return cell_text(self.values.get(column), spec)
        except UserError as error:
            raise UserError(f"{error} in {column}") from None


@checked
def read_table(
    path, header: bool = True, columns: Texts | None = None, fields: Texts | None = None
):
    """Reads the rows of a table.

    Returns (names, lines): the columns, a list of str, and a list of `Line`. Columns of
    TSV and CSV files also have the names "0", "1" and so on. Raises a FileNotFoundError
    if there is no such file, a ValueError if it has another format, or not the one in
    its name, and an ImportError if Arrow or Parquet needs pyarrow.

    Args:
        path: str, a file or a folder; a pattern with * may match several files of
            Arrow or Parquet.
        header: bool, whether the first line of a TSV or CSV file names its columns.
        columns: names of the columns of a TSV or CSV file, in place of the header's.
        fields: names of the columns that are used; None for all. Other columns of
            Arrow and Parquet may hold what is no text.
    """
    path = locate(path)
    name = path.removesuffix(".gz")
    if name.endswith((".tsv", ".txt", ".csv")):
        return _delimited(path, name.endswith(".csv"), header, columns)
    if columns is not None:
        raise UserError(
            f"columns names the columns of .tsv and .csv files; {path!r} names its own."
        )
    if name.endswith((".jsonl", ".ndjson")):
        return _json(read_text(path), fields)
    return _arrow(path, fields)


def table_files(path):
    """Returns the paths of the files that `read_table` may read."""
    path = locate(path)
    if not tf.io.gfile.isdir(path):
        return files_of(path)
    return [os.path.join(path, name) for name in sorted(tf.io.gfile.listdir(path))]


def read_text(path):
    """Returns the text of a file; bytes that are not UTF-8 become lone surrogates."""
    if not tf.io.gfile.exists(path):
        raise _no_file(path)
    return read_bytes(path).decode("utf-8", "surrogateescape").removeprefix("\ufeff")


def _no_file(path):
    pattern = f"*{os.path.splitext(path.removesuffix('.gz'))[1]}*"
    return MissingFileError(f"There is no file {path!r}.{files_near(path, pattern)}")


def describe_columns(names):
    """A sentence with the columns of a table, `names` as of `read_table`."""
    first = len(names) - names[::-1].index("0") - 1 if "0" in names else len(names)
    if names[first:] != [*map(str, range(len(names) - first))]:
        first = len(names)  # "0" is a name, and not the first number of a column.
    named = [f"{name:.60}" for name in names[:first]]
    if named or not names:
        return f"It has: {shorten(named) or 'none'}."
    return f"Its columns have no names, but numbers from 0 to {len(names) - 1}."


def split_lines(text):
    """Returns the lines of a text without their ends, LF or CR LF.

    Blank lines at the end are left out. Other line breaks, as U+2028, are text.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1].strip(" "):
        lines.pop()
    return lines


def _runs(numbers):
    """Sorted numbers as text, consecutive ones together: ["3", "5 to 9"]."""
    runs = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(a) if a == b else f"{a} to {b}" for a, b in runs]


def report_bad_rows(task, bad, files, rows, how_to_skip, skip=False):
    """Logs the bad rows of a task if `skip`, else raises a ValueError with them.

    `bad` is {(split, problem): numbers of lines}, `files` {split: file}, `rows` the
    number of good and bad rows, and `how_to_skip` a binding of gin.
    """
    if not bad:
        return
    number = sum(map(len, bad.values()))
    kinds = []
    for split, problem in sorted(bad, key=lambda key: [*files].index(key[0])):
        lines = sorted(bad[split, problem])
        runs = _runs(lines) if len(lines) > 5 else [*map(str, lines)]
        first = ", ".join(runs[:5]) + ", ..." * (len(runs) > 5)
        lines = f"{len(lines):,} (line {first} of {files[split]})"
        kinds.append(f"{split}, {problem}: {lines}")
    text = f"{task}: {number:,} of {rows:,} rows are bad{' and skipped' * skip}: "
    text += f"{shorten(kinds, '; ')}."
    if not skip:
        raise UserError(f"{text} Correct them, or leave them out with {how_to_skip}.")
    logging.warning("%s", text)


def _check_names(path, names):
    if not all(map(is_utf8, names)):
        raise UserError(f"The names of columns in {path} are not UTF-8. Save it so.")
    counts = collections.Counter(filter(None, names))
    if twice := [f"{name!r:.60}" for name, count in counts.items() if count > 1]:
        raise UserError(
            f"Several columns of {path} are called {shorten(twice)}. Rename them in "
            "the file, or give all columns of a .tsv or .csv file names of your own: "
            "TableRows.columns."
        )


def _delimited(path, quotes, header, columns):
    text = read_text(path)
    records = list(_csv_records(text) if quotes else _tsv_records(text))
    while records and records[-1][2] == []:
        records.pop()  # Blank lines at the end.
    names = None
    if header and records:
        first, _, names, problem = records.pop(0)
        if problem:
            raise UserError(f"{path}, line {first}, names the columns: {problem}.")
    if columns is not None:
        names = list(columns)
    elif names is None:  # The first row shows how many there are.
        names = [""] * len(records[0][2] or []) if records else []
    _check_names(path, names)
    lines = []
    for first, last, cells, problem in records:
        if problem:
            pass
        elif not all(map(is_utf8, cells)):
            problem = "invalid UTF-8"
        elif len(cells) != len(names):
            problem = f"wrong column count (expected {len(names)})"
        if problem:  # All of its lines are lost, so all are counted.
            lines += [Line(n, None, problem) for n in range(first, last + 1)]
        else:
            values = {str(i): cell for i, cell in enumerate(cells)}
            lines.append(Line(first, values | dict(zip(names, cells, strict=True))))
    return [*filter(None, names), *map(str, range(len(names)))], lines


def _tsv_records(text):
    """Yields (first line, last line, cells, None)."""
    for number, line in enumerate(split_lines(text), 1):
        yield number, number, line.split("\t"), None


def _csv_records(text):
    """Yields (first line, last line, cells, why there are no cells)."""
    csv.field_size_limit(sys.maxsize)  # By default 131,072 characters.
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    while True:
        first, cells, problem = reader.line_num + 1, None, None
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            closed = "unexpected end" not in str(error)
            problem = "malformed quotes" if closed else "a quote that is not closed"
        yield first, reader.line_num, cells, problem


def _json(text, fields):
    names, lines = {}, []
    for number, line in enumerate(split_lines(text), 1):
        try:
            row = _json_object(line)
        except UserError as error:
            lines.append(Line(number, None, str(error)))
            continue
        names |= dict.fromkeys(row)
        if fields is not None:
            row = {name: row[name] for name in fields if name in row}
        lines.append(Line(number, row))
    return list(names), lines


def _json_object(line):
    """The dictionary in a line; a UserError says what is wrong with it."""
    if not is_utf8(line):
        raise UserError("invalid UTF-8")
    try:
        row = json.loads(line, object_pairs_hook=_once_each, parse_float=_float)
    except json.JSONDecodeError as error:
        reason = re.sub(r"( starting)?( at)?$", "", error.msg)
        raise UserError(f"malformed JSON ({reason})") from None
    except RecursionError:
        raise UserError("JSON that is nested too deep") from None
    except UserError:
        raise
    except ValueError:  # Python's own limit
        raise UserError("an integer of more than 4,300 digits") from None
    if not isinstance(row, dict):
        raise UserError("no JSON object")
    return row


def _once_each(pairs):
    row = dict(pairs)
    if len(row) < len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        ((name, _),) = counts.most_common(1)
        raise UserError(f"two values of {name!r:.60}")
    return row


def _float(text):
    number = float(text)
    return TooLarge(text) if math.isinf(number) else number


def _arrow(path, fields):
    lines, names = [], {}
    for file in _arrow_files(path):
        table, classes = _read_arrow(file)
        _check_names(file, table.column_names)
        names |= dict.fromkeys(table.column_names)
        columns = {
            name: _column(file, name, table.column(name), classes.get(name))
            for name in table.column_names
            if fields is None or name in fields
        }
        for i in range(table.num_rows):
            values = {name: column[i] for name, column in columns.items()}
            lines.append(Line(len(lines) + 1, values))
    return list(names), lines


def _column(path, name, column, classes):
    """The values of a column, or the names of its classes."""
    try:
        values = column_values(column)
    except (ArithmeticError, LookupError, NotImplementedError, ValueError) as error:
        raise UserError(
            f"The column {name!r} of {path} holds {column.type}, which cannot be read: "
            f"{str(error) or repr(error)}. Write the column as text."
        ) from error
    if classes is None:
        return values
    return [_class_name(label, classes, name) for label in values]


def _class_name(label, words, column):
    """The name of a class; None for None and -1, which mean no class."""
    if label in (None, -1):
        return None
    if isinstance(label, int) and 0 <= label < len(words):
        return words[label]
    raise UserError(
        f"The column {column!r} has {len(words)} classes, and a row has the class "
        f"{label!r}."
    )


def _arrow_files(path):
    """The files of a folder or pattern, in the order in which Hugging Face reads."""
    if not tf.io.gfile.isdir(path):
        files = files_of(path)
        if not files:
            raise _no_file(path)
        if wrong := [file for file in files if not file.endswith(_ARROW)]:
            raise UserError(
                f"The name of {wrong[0]!r} does not tell its format. Expected a folder "
                "of Arrow or Parquet, or a name that ends in .tsv, .txt, .csv, .jsonl "
                "or .ndjson, each perhaps with .gz, .arrow or .parquet."
            )
        return files
    there = sorted(tf.io.gfile.listdir(path))
    if "state.json" in there:  # Other files may be left from other work.
        names = _listed_files(os.path.join(path, "state.json"), there)
    else:
        names = [name for name in there if name.endswith(_ARROW)]
    if not names:
        raise MissingFileError(
            f"There is no .arrow or .parquet file in the folder {path!r}. It holds: "
            f"{shorten(there) or 'nothing'}. Of a folder with one folder for each "
            "split, name those."
        )
    return [os.path.join(path, name) for name in names]


def _listed_files(state, there):
    """The names of files in a dataset's state.json, which must be in its own folder."""
    try:
        names = [x["filename"] for x in json.loads(read_text(state))["_data_files"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(
            f"{state!r} is not what `Dataset.save_to_disk` writes: {error!r}."
        ) from error
    for name in names:
        if name not in there:
            raise UserError(
                f"{state!r} names the file {name!r:.200}. Expected names of files in "
                "its own folder."
            )
    return names


def _read_arrow(path):
    """Returns (`pyarrow.Table`, {column of classes: their names})."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingLibraryError(
            f"{path!r} is read with pyarrow, which is not installed. Install it: "
            "python -m pip install pyarrow"
        ) from error
    data = pyarrow.BufferReader(read_bytes(path))
    try:
        if path.endswith(".parquet"):
            table = pyarrow.parquet.read_table(data)
        else:
            table = pyarrow.ipc.open_stream(data).read_all()
        table.validate(full=True)  # Damaged texts would fail later, one by one.
        table.column_names  # noqa: B018, fails on damaged names
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"{path!r} is not the Parquet or Arrow stream its name says: {error}"
        ) from error
    try:  # Hugging Face's metadata name the classes.
        about = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        classes = {
            name: list(feature["names"])
            for name, feature in about.get("info", {}).get("features", {}).items()
            if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"The metadata of Hugging Face's datasets cannot be read: {error!r}."
        ) from error
    return table, classes
