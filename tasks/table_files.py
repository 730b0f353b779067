"""Reads the files of tables: TSV, CSV, JSON lines, Arrow, Parquet and TFRecord.

A line of a .tsv (or .txt) file is split at its tabs; quotes have no meaning there. A
.csv file is read by Python's csv module, so quoted cells may hold commas and line ends.
A line of a .jsonl (or .ndjson) file is an object. A record of a .tfrecord file is a
`tf.train.Example`. A folder is what Hugging Face's `Dataset.save_to_disk` writes, or
one of .parquet files. Names may end in .gz or .zst, but for Arrow and Parquet, and in
the number of a shard, such as -00001-of-00010.

`TableFile` reads a file row by row, in memory that does not grow.
"""

import collections
import contextlib
import csv
import inspect
import io
import itertools
import json
import math
import os
import re
import sys
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from absl import logging

from remixer_tf.arguments import Texts, checked
from remixer_tf.checkpoints.paths import locate
from remixer_tf.data.failures import files_near
from remixer_tf.errors import MissingFileError, MissingLibraryError, UserError, shorten
from remixer_tf.tasks.cells import TooLarge, cell_text, column_values, is_utf8
from remixer_tf.tasks.folders import files_of
from remixer_tf.tasks.opening import COMPRESSED, open_bytes, open_text, plain_name

_ARROW = (".arrow", ".parquet")
_FORMATS = {
    ".tsv": (".tsv", ".txt"),
    ".csv": ".csv",
    ".jsonl": (".jsonl", ".ndjson"),
    ".tfrecord": (".tfrecord", ".tfrecords"),
    ".arrow": ".arrow",
    ".parquet": ".parquet",
}
_OF_TEXT = (*_FORMATS[".tsv"], ".csv", *_FORMATS[".jsonl"])
_BATCH = 1024  # rows of Parquet that are read at once
_BLOCK = 2**20  # bytes
_STREAM_END = b"\xff\xff\xff\xff\0\0\0\0"  # of Arrow: a message of 0 bytes
_FIRST_ROWS = 1_000  # of JSON lines and TFRecord, one of which has each column


class Line(NamedTuple):
    """A row of a file, or a line of a row of several lines that cannot be read."""

    number: int  # from 1, of the line where it starts; in Arrow and Parquet of the row
    values: dict | None  # column -> cell, for `cell_text`
    problem: str | None = None  # why there are no values
    place: tuple | None = None  # the file and the number in it, see `read_table`

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
        path: str, a file or a folder; a pattern with * may match several files.
        header: bool, whether the first line of a TSV or CSV file names its columns.
        columns: names of the columns of a TSV or CSV file, in place of the header's.
        fields: names of the columns that are used; None for all. Other columns of
            Arrow and Parquet may hold what is no text.
    """
    names, lines = {}, []
    files = [TableFile(x, header, columns, fields) for x in shards_of(locate(path))]
    for file in files:
        start = len(lines)
        for record in file.records():
            for line in record:
                place = file.path, line.number
                lines.append(line._replace(number=start + line.number, place=place))
        names |= dict.fromkeys(file.names)
    return list(files[0].names) if len(files) == 1 else list(names), lines


class TableFile:
    """A file of a table, see `read_table`, whose rows are read one after the other.

    Attributes:
        path: str.
        names: the columns, a list of str. Of JSON lines and TFRecord a dictionary,
            which has those of the records that have been read.
        columns: the columns without the numbers that those of TSV and CSV have, too,
            a list of str; of JSON lines and TFRecord None.
    """

    def __init__(self, path, header=True, columns=None, fields=None):
        self.path, self._fields = path, fields
        self._format = format_of(path)
        self._of_text = self._format in (".tsv", ".csv")
        self._header, self._columns = header, columns
        if columns is not None and not self._of_text:
            raise UserError(
                f"columns names the columns of .tsv and .csv files; {path!r} names its "
                "own."
            )
        self.names, self.columns, self._classes = {}, None, {}
        if self._of_text:
            self._cells, self._first = self._delimited_columns()
            self.names = [
                *filter(None, self._cells),
                *map(str, range(len(self._cells))),
            ]
            self.columns = [x or str(i) for i, x in enumerate(self._cells)]
        elif self._format in _ARROW:
            schema = self._open_arrow()[1]
            with _arrow_errors(path, import_pyarrow(path)):
                self.names = self.columns = schema.names  # decodes them
            _check_names(path, self.names)
            self._classes = _classes(schema)

    def count(self):
        """Returns the number of records, an int. It reads the file, and no cells."""
        if self._of_text:
            return sum(1 for _ in self._raw()) - self._first
        if self._format == ".jsonl":
            return sum(1 for _ in lines_of(open_text(self.path)))
        if self._format == ".parquet":
            return self._open_arrow()[0].metadata.num_rows
        if self._format == ".arrow":
            with _arrow_errors(self.path, import_pyarrow(self.path)):
                return sum(batch.num_rows for batch in self._open_arrow()[0])
        return sum(1 for _ in self._examples(0))

    def first_columns(self):
        """Reads the first row; of JSON lines and TFRecord, which have no header, 1,000.

        Returns (names, place): the columns, none if no row can be read, and a str, the
        path and which of its rows were read, for an error.
        """
        header = not isinstance(self.names, dict)
        limit = 1 if header else _FIRST_ROWS
        number = sum(1 for _ in itertools.islice(self.records(), limit))
        place = self.path
        if not header and number == limit:
            place += f" (the first {limit:,} rows must show each column)"
        return list(self.names) if number else [], place

    def records(self, skip=0):
        """Yields a list of `Line` for each record: a row, or the lines of a bad one.

        `skip`, int, leaves out the first records, in less time than reading them.
        """
        if self._of_text:
            return self._delimited(skip)
        if self._format == ".jsonl":
            return self._json(skip)
        if self._format == ".tfrecord":
            return self._examples(skip)
        return self._arrow(skip)

    def _raw(self):
        """Yields (first line, last line, cells, why there are no cells)."""
        file = open_text(self.path)
        return _without_blank_end(
            _csv_records(file) if self._format == ".csv" else _tsv_records(file)
        )

    def _delimited_columns(self):
        """Returns the names of the columns, "" without one, and the records before."""
        first, last, cells, problem = next(self._raw(), (1, 1, None, None))
        if self._header and problem:
            raise UserError(f"{self.path}, line {first}, names the columns: {problem}.")
        skipped = int(self._header and cells is not None)
        names = cells if self._header and cells is not None else None
        if self._columns is not None:
            names = list(self._columns)
        elif names is None:  # The first row shows how many there are.
            names = [""] * len(cells or [])
        _check_names(self.path, names)
        return names, skipped

    def _delimited(self, skip):
        names = self._cells
        for first, last, cells, problem in itertools.islice(
            self._raw(), self._first + skip, None
        ):
            if problem:
                pass
            elif not all(map(is_utf8, cells)):
                problem = "invalid UTF-8"
            elif len(cells) != len(names):
                problem = f"wrong column count (expected {len(names)})"
            if problem:  # All of its lines are lost, so all are counted.
                yield [Line(n, None, problem) for n in range(first, last + 1)]
                continue
            values = {str(i): cell for i, cell in enumerate(cells)}
            values |= dict(zip(names, cells, strict=True))
            yield [Line(first, values)]

    def _json(self, skip):
        lines = enumerate(lines_of(open_text(self.path)), 1)
        for number, line in itertools.islice(lines, skip, None):
            try:
                row = _json_object(line)
            except UserError as error:
                yield [Line(number, None, str(error))]
                continue
            yield [Line(number, self._seen(row))]

    def _seen(self, row):
        self.names |= dict.fromkeys(row)
        if self._fields is None:
            return row
        return {name: row[name] for name in self._fields if name in row}

    def _examples(self, skip):
        kind = "GZIP" if self.path.endswith(".gz") else ""
        if self.path.endswith(".zst"):
            raise UserError(f"{self.path}: TensorFlow reads TFRecord in .gz alone.")
        if not tf.io.gfile.exists(self.path):
            raise _no_file(self.path)
        # Without its warning. Records of tf.data take 100 times as long.
        read = inspect.unwrap(tf.compat.v1.io.tf_record_iterator)
        records = self._to_the_end(read(self.path, tf.io.TFRecordOptions(kind)))
        try:
            for number, record in enumerate(itertools.islice(records, skip, None), 1):
                yield [Line(skip + number, self._seen(_example(record)))]
        except (tf.errors.OpError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"{self.path!r} holds no records of tf.train.Example, or is damaged: "
                f"{error}"
            ) from error

    def _to_the_end(self, records):
        """Yields records; raises a UserError if TensorFlow takes a cut for the end.

        It does so within a record's first 12 bytes, and anywhere in .gz.
        """
        read = 0
        for record in records:
            read += len(record) + 16  # its length, and two checksums
            yield record
        size = tf.io.gfile.stat(self.path).length
        if self.path.endswith(".gz"):
            with open_bytes(self.path) as file:
                size = sum(map(len, iter(lambda: file.read(_BLOCK), b"")))
        if read != size:
            raise UserError(
                f"{self.path} is damaged, or still being written: its last record is "
                "cut."
            )

    def _open_arrow(self):
        """Returns a `ParquetFile`, or Arrow's batches, and the schema."""
        pyarrow = import_pyarrow(self.path)
        with _arrow_errors(self.path, pyarrow):
            if self._format == ".arrow":
                file = open_bytes(self.path)
                start = file.read(6)
                if start == b"ARROW1":  # else a stream, as Hugging Face's
                    file = pyarrow.ipc.open_file(file)
                    batches = map(file.get_batch, range(file.num_record_batches))
                    return batches, file.schema
                # pyarrow takes a cut between batches for the end. Streams of before
                # 2019 start and end otherwise.
                if start.startswith(_STREAM_END[:4]):
                    file.seek(-len(_STREAM_END), io.SEEK_END)
                    if file.read() != _STREAM_END:
                        raise UserError(
                            f"{self.path} is damaged, or still being written: the end "
                            "of its Arrow stream is missing."
                        )
                file.seek(0)
                file = pyarrow.ipc.open_stream(file)
                return file, file.schema
            file = pyarrow.parquet.ParquetFile(
                open_bytes(self.path), buffer_size=2**20, pre_buffer=False
            )
            return file, file.schema_arrow

    def _arrow(self, skip):
        pyarrow, number = import_pyarrow(self.path), skip
        file, schema = self._open_arrow()
        wanted = [
            name
            for name in schema.names
            if self._fields is None or name in self._fields
        ]
        batches = _batches(file, self._format, wanted, skip)
        while True:
            with _arrow_errors(self.path, pyarrow):
                batch = next(batches, None)
                if batch is None:
                    return
                table = pyarrow.Table.from_batches([batch])
                table.validate(full=True)  # Damaged texts would fail later.
            columns = {
                name: _column(
                    self.path, name, table.column(name), self._classes.get(name)
                )
                for name in wanted
            }
            for i in range(table.num_rows):
                number += 1
                values = {name: column[i] for name, column in columns.items()}
                yield [Line(number, values)]


def format_of(path):
    """Returns the format that a file's name tells: ".tsv", ".csv", ".jsonl" or another.

    Raises a ValueError if it tells none that is read.
    """
    name = plain_name(path)
    for format, ends in _FORMATS.items():
        if name.endswith(ends):
            if format in _ARROW and path.endswith(COMPRESSED):
                break
            return format
    if name.endswith((".tar", ".tgz")):
        raise UserError(
            f"{path!r} is a tar archive, as WebDataset's. tf.data reads none. Unpack "
            "it, or write its samples as .parquet, .jsonl or .tfrecord."
        )
    raise UserError(
        f"The name of {path!r} does not tell its format. Expected a folder of Arrow or "
        "Parquet, or a name that ends in .tsv, .txt, .csv, .jsonl, .ndjson or "
        ".tfrecord, each perhaps with .gz or .zst, .arrow or .parquet."
    )


def shards_of(path):
    """Returns the files of a table, a pattern or a folder, in their order.

    Raises a FileNotFoundError if there is none, and a ValueError for another format.
    """
    if tf.io.gfile.isdir(path) and not path.endswith(_OF_TEXT):
        return _folder_files(path)
    files = files_of(path)
    if not files:
        raise _no_file(path)
    for file in files:
        format_of(file)
    return files


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
    with open_text(path) as file:
        return file.read()


def _no_file(path):
    pattern = f"*{os.path.splitext(plain_name(path))[1]}*"
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
    """Returns the lines of a text without their ends, see `lines_of`."""
    return list(lines_of(io.StringIO(text, newline="\n")))


def lines_of(file):
    """Yields the lines of a text file without their ends, LF or CR LF.

    Blank lines at the end are left out. Other line breaks, as U+2028, are text.
    """
    blank = []
    for line in file:
        line = line.removesuffix("\n").removesuffix("\r")
        if line.strip(" "):
            yield from blank
            blank.clear()
            yield line
        else:
            blank.append(line)


def _runs(numbers):
    """Sorted numbers as text, consecutive ones together: ["3", "5 to 9"]."""
    runs = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(a) if a == b else f"{a} to {b}" for a, b in runs]


def _first(lines):
    """The first five numbers or runs of numbers, as text."""
    runs = _runs(lines) if len(lines) > 5 else [*map(str, lines)]
    return ", ".join(runs[:5]) + ", ..." * (len(runs) > 5)


def report_bad_rows(task, bad, splits, rows, how_to_skip, skip=False):
    """Logs the bad rows of a task if `skip`, else raises a ValueError with them.

    `bad` is {(split, problem): [(file, number of its line)]}, `splits` their order,
    `rows` the number of good and bad rows, and `how_to_skip` a binding of gin.
    """
    if not bad:
        return
    number = sum(map(len, bad.values()))
    kinds = []
    for split, problem in sorted(bad, key=lambda key: [*splits].index(key[0])):
        by_file = collections.defaultdict(list)
        for path, line in sorted(bad[split, problem]):
            by_file[path].append(line)
        places = [f"line {_first(lines)} of {x}" for x, lines in by_file.items()]
        count = f"{len(bad[split, problem]):,}"
        kinds.append(f"{split}, {problem}: {count} ({shorten(places)})")
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


def _tsv_records(file):
    """Yields (first line, last line, cells, None)."""
    for number, line in enumerate(lines_of(file), 1):
        yield number, number, line.split("\t"), None


def _csv_records(file):
    """Yields (first line, last line, cells, why there are no cells)."""
    csv.field_size_limit(sys.maxsize)  # By default 131,072 characters.
    reader = csv.reader(file, strict=True)
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


def _without_blank_end(records):
    """Leaves out blank lines at the end."""
    blank = []
    for record in records:
        if record[2] == []:
            blank.append(record)
            continue
        yield from blank
        blank.clear()
        yield record


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


def _column(path, name, column, namer):
    """The values of a column; `namer` gives classes their names, or is None."""
    try:
        values = column_values(column)
    except (ArithmeticError, LookupError, NotImplementedError, ValueError) as error:
        raise UserError(
            f"The column {name!r} of {path} holds {column.type}, which cannot be read: "
            f"{str(error) or repr(error)}. Write the column as text."
        ) from error
    return [*map(namer, values)] if namer else values


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


def _folder_files(path):
    """The files of a folder, in the order in which Hugging Face reads."""
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


def import_pyarrow(path):
    """Imports pyarrow, to read a file. Raises an ImportError that names it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingLibraryError(
            f"{path!r} is read with pyarrow, which is not installed. Install it: "
            "python -m pip install pyarrow"
        ) from error
    return pyarrow


@contextlib.contextmanager
def _arrow_errors(path, pyarrow):
    try:
        yield
    except UserError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise UserError(
            f"{path!r} is not the Parquet or Arrow its name says: {error}"
        ) from error


def _batches(file, format, wanted, skip):
    """Yields batches of rows after the first `skip`."""
    if format == ".parquet":
        groups, group = file.metadata.num_row_groups, 0
        while group < groups and file.metadata.row_group(group).num_rows <= skip:
            skip -= file.metadata.row_group(group).num_rows
            group += 1
        batches = file.iter_batches(
            _BATCH, [*range(group, groups)], wanted, use_threads=False
        )
    else:
        batches = (batch.select(wanted) for batch in file)
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        yield batch.slice(skip)
        skip = 0


def _classes(schema):
    """Returns {column with classes: function of a value}, see `_namer`.

    They are as Hugging Face's metadata has them.
    """
    try:
        about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = about.get("info", {}).get("features", {})
        found = {name: _namer(feature, name) for name, feature in features.items()}
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        RecursionError,
    ) as error:
        raise UserError(
            f"The metadata of Hugging Face's datasets cannot be read: {error!r}."
        ) from error
    return {name: namer for name, namer in found.items() if namer}


def _namer(feature, column):
    """A function that gives the classes in a value their names; None without classes.

    `feature` is a part of Hugging Face's metadata: of a value, a list or a struct.
    """
    if isinstance(feature, list):  # of one feature: a list's, before version 4
        feature = {"_type": "List", "feature": feature[0]}
    if not isinstance(feature, dict):
        return None
    kind = feature.get("_type")
    if kind == "ClassLabel":
        words = list(feature["names"])
        return lambda label: _class_name(label, words, column)
    if kind in ("Sequence", "List", "LargeList"):
        inner = feature["feature"]
        if kind == "Sequence" and isinstance(inner, dict) and "_type" not in inner:
            # Arrow has a struct of lists.
            lists = {k: {"_type": "List", "feature": x} for k, x in inner.items()}
            return _namer(lists, column)
        namer = _namer(inner, column)

        def of_list(values):
            values = _instance(values, list, column)
            return values and [*map(namer, values)]

        return of_list if namer else None
    if isinstance(kind, str):
        return None
    parts = {name: _namer(inner, column) for name, inner in feature.items()}
    parts = {name: namer for name, namer in parts.items() if namer}

    def of_struct(row):
        row = _instance(row, dict, column)
        return row and row | {k: namer(row.get(k)) for k, namer in parts.items()}

    return of_struct if parts else None


def _instance(value, kind, column):
    """A list or dictionary in which there are classes, or None; else an error."""
    if value is None or isinstance(value, kind):
        return value
    raise UserError(
        f"The column {column!r} has classes by the metadata of Hugging Face's "
        f"datasets, and a row has {value!r:.60} there. Expected: a {kind.__name__}."
    )


def _example(record):
    """Returns {feature: value} of a `tf.train.Example` in bytes.

    Several values are a list, and none is None.
    """
    row = {}
    for name, feature in tf.train.Example.FromString(record).features.feature.items():
        kind = feature.WhichOneof("kind")
        values = list(getattr(feature, kind).value) if kind else []
        if kind == "float_list":
            values = [float(str(np.float32(x))) for x in values]
        row[name] = values[0] if len(values) == 1 else values or None
    return row
