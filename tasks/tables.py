"""Tasks that a gin file describes: rows of tables, made text by templates.

    TASK = @table_task()
    table_task.name = 'nli'
    table_task.files = {'train': 'train.tsv', 'validation': 'dev.tsv'}
    table_task.inputs = 'nli hypothesis: {hypothesis} premise: {premise}'
    table_task.targets = '{label}'
    table_task.metrics = ['accuracy', 'per_class']

`cells.py` makes cells text. `{price:.2f}` writes a cell in a format of Python's.
Files are read when examples are asked for, and held in memory. Answering needs none.
Large files are streamed, see `TableRows`.
"""

import collections
import dataclasses
import functools
import itertools
import json
import math
import os
import random
import re
import string
import zlib
from typing import Annotated

import numpy as np
import seqio
import tensorflow as tf

from remixer_tf.arguments import Integer, check_fields, checked, instance
from remixer_tf.checkpoints.paths import Located, locate
from remixer_tf.data.file_states import kept_while_unchanged
from remixer_tf.errors import UserError, check_choices, check_paths, check_range
from remixer_tf.tasks.cells import check_format
from remixer_tf.tasks.rows import (
    TOKENIZE,
    TOKENIZE_KEEPING_EOS,
    RowSource,
    byte_features,
    check_task,
)
from remixer_tf.tasks.streams import StreamedRows, is_streamed
from remixer_tf.tasks.t5_library import import_t5
from remixer_tf.tasks.table_files import (
    TableFile,
    describe_columns,
    read_table,
    report_bad_rows,
    shards_of,
    table_files,
)
from remixer_tf.tasks.text_metrics import METRICS, OF_T5


@dataclasses.dataclass(frozen=True)
class TableRows:
    """How the rows of a task's tables are read.

    A bad row has another number of columns, bytes that are not UTF-8, or quotes or JSON
    that cannot be read; then each of its lines counts. Or it has no value (NaN is none)
    for a column of the inputs, only blanks in the columns of the targets, or a value
    that a format cannot write. Or a later split has its texts too: a test split stays
    whole.

    Attributes:
        fractions: dictionary, split -> share of the rows of one file; the shares sum
            to 1. `seed` draws the split of each row, and rows keep their order.
        seed: int.
        header: bool, whether the first line of a TSV or CSV file names its columns.
        columns: list of str, names of TSV's and CSV's columns in place of the header's.
        on_bad_rows: "raise", or "skip": they are left out, and counted in a warning.
        streamed: bool, whether rows are not held in memory, see
            `remixer_tf.tasks.streams`; None for files of more than 256 MiB together.
            Then splits are not compared, and a row's number and `seed` draw its split.
            The number of rows is not known.
    """

    fractions: dict | None = None
    seed: Integer = 0
    header: bool = True
    columns: list | None = None
    on_bad_rows: str = "raise"
    streamed: bool | None = None

    def __post_init__(self):
        check_fields(self)


@checked
def table_task(
    files: Located,
    inputs,
    targets,
    name="table",
    rows: Annotated[TableRows, instance(TableRows)] | None = None,
    metrics=("accuracy",),
    shuffle_buffer_size=100_000,
    eos_after_trim: bool = False,
):
    """Makes a `seqio.Task` from tables; it is not in seqio's registry.

    Examples have `inputs` and `targets` (in bytes unless `Run.vocabulary` is set,
    with EOS), their texts `*_pretokenized`, and the row's `line`. `LongExamples` counts
    the rows that are too long for the model.

    Args:
        files: dictionary, split -> file, see `read_table`, or a pattern such as
            "part-*.jsonl.zst"; or one of these, which `TableRows.fractions` divides.
        inputs, targets: str, text with columns in braces, such as "premise: {premise}".
            In TSV and CSV numbers from 0 serve too: "{0}". A brace itself is doubled.
            A format may follow: "{price:.2f}", or of dates "{day:%d %B}". For it the
            text of a TSV or CSV file is read as a number, a date or a time.
        name: str, of the task.
        rows: `TableRows`; None for its defaults.
        metrics: list of names, see `remixer_tf.tasks.text_metrics.METRICS`.
        shuffle_buffer_size: int; as large as the training split, it shuffles fully.
        eos_after_trim: bool, whether a text that is cut keeps EOS, as transformers'
            tokenizers with `truncation=True`. T5's own training loses it.

    Raises:
        ValueError: an argument does not fit. When examples are asked for: bad rows, a
            column that is in no row, or a split without rows.
        FileNotFoundError: when examples are asked for: there is no such file.
    """
    rows = rows or TableRows()
    check_task(name, shuffle_buffer_size)
    files = os.fspath(files) if isinstance(files, os.PathLike) else files
    _check(files, rows, inputs, targets)
    if isinstance(files, dict):
        files = {split: os.fspath(file) for split, file in files.items()}
    several = isinstance(metrics, (list, tuple))
    if not several or not all(metric in [*METRICS] for metric in metrics):
        raise UserError(
            f"metrics must be a list of {', '.join(METRICS)}. Received: {metrics!r}."
        )
    if OF_T5 & {*metrics}:
        import_t5("evaluation.metrics")  # now, not after hours of training
    # As text, so that a table that several tasks read is read once.
    table = json.dumps([name, files, inputs, targets, dataclasses.asdict(rows)])
    settings = {"files": files, "inputs": inputs, "targets": targets}
    settings |= dataclasses.asdict(rows)
    splits, names = tuple(rows.fractions or files), ("inputs", "targets", "line")
    if is_streamed(rows.streamed, lambda: _files(table)):
        source = StreamedRows(
            functools.partial(_shards, table),
            functools.partial(_stream, table),
            splits,
            names,
            [tf.string, tf.string, tf.int64],
            settings,
        )
    else:
        source = RowSource(lambda split: _read(table)[split], splits, names, settings)
    return seqio.Task(
        name,
        source=source,
        preprocessors=TOKENIZE_KEEPING_EOS if eos_after_trim else TOKENIZE,
        output_features=byte_features(),
        metric_fns=[METRICS[metric] for metric in metrics],
        shuffle_buffer_size=shuffle_buffer_size,
    )


def _files(table):
    """The files of a task."""
    _, files, *_ = json.loads(table)
    patterns = files.values() if isinstance(files, dict) else [files]
    return [file for pattern in patterns for file in table_files(pattern)]


@kept_while_unchanged(_files, maxsize=8)
def _read(table):
    """Returns {split: list of (inputs, targets, line)}."""
    name, files, *templates, rows = json.loads(table)
    if isinstance(files, dict):
        splits = {k: _read_file(path, templates, rows) for k, path in files.items()}
    else:
        lines = _read_file(files, templates, rows)
        splits = _divide(lines, rows["fractions"], rows["seed"])
        files = dict.fromkeys(splits, files)
    bad, examples = collections.defaultdict(list), {}
    for split, lines in splits.items():
        good = examples[split] = []
        for line in lines:
            try:
                good.append((*_fill(line, *templates), line.number, line.place))
            except UserError as error:
                bad[split, str(error)].append(line.place)
    last = {}  # (inputs, targets) -> the last split that has them
    for split, good in examples.items():
        last |= dict.fromkeys((row[:2] for row in good), split)
    for split, good in examples.items():
        for row in good:
            if (other := last[row[:2]]) != split:
                bad[split, f"also in {other}"].append(row[3])
        good[:] = [row[:3] for row in good if last[row[:2]] == split]
    number = sum(map(len, splits.values()))
    skip = rows["on_bad_rows"] == "skip"
    report_bad_rows(name, bad, files, number, "TableRows.on_bad_rows = 'skip'", skip)
    for split, good in examples.items():
        if not good:
            raise UserError(
                f"{name} {split} has no rows that can be used: {files[split]} gave "
                f"{len(splits[split]):,} rows."
            )
    return examples


def _read_file(path, templates, rows):
    header, columns = rows["header"], rows["columns"]
    names, lines = read_table(
        path, header, columns, sum(map(template_columns, templates), [])
    )
    _check_columns(path, names, templates, rows)
    return lines


def _check_columns(path, names, templates, rows):
    if not names:  # No row can be read, and each says why.
        return
    for template in templates:
        for name, _ in _fields(template):
            if name not in names:
                by_header = "0" in names and rows["header"] and not rows["columns"]
                raise UserError(
                    f"{path} has no column {name!r}, which {template!r} names. "
                    f"{describe_columns([*names])}"
                    f"{' Its first line names them.' * by_header}"
                )


def _shards(table, split):
    """Returns the files of a split that is streamed."""
    _, files, *_ = json.loads(table)
    return shards_of(locate(files[split] if isinstance(files, dict) else files))


def _stream(table, split, path):
    """Yields the rows of a file that a split has, see `StreamedRows`."""
    name, _, *templates, rows = json.loads(table)
    options = rows["header"], rows["columns"], sum(map(template_columns, templates), [])
    _check_same_columns(path, _shards(table, split), options)
    file = TableFile(path, *options)
    bad, total = collections.defaultdict(list), 0
    how, skip = "TableRows.on_bad_rows = 'skip'", rows["on_bad_rows"] == "skip"
    names, place = file.first_columns()
    _check_columns(place, names, templates, rows)
    for line in itertools.chain.from_iterable(file.records()):
        total += 1
        if rows["fractions"] and split != _drawn(path, line.number, rows):
            continue
        try:
            yield *_fill(line, *templates), line.number
        except UserError as error:
            bad[split, str(error)].append((path, line.number))
    report_bad_rows(name, bad, [split], total, how, skip)


def _check_same_columns(path, shards, options):
    """Raises a UserError if a shard of TSV or CSV has not the columns of the first.

    Shards without a line have none.
    """
    names = TableFile(path, *options).names
    if not isinstance(names, list) or not names:
        return
    for first in shards:
        if first == path or names == (expected := TableFile(first, *options).names):
            return
        if expected:
            raise UserError(
                f"{path} has other columns than {first}. {describe_columns(names)} "
                f"Expected: {', '.join(expected)}."
            )


def _drawn(path, number, rows):
    """The split that the number of a row draws."""
    text = f"{rows['seed']} {os.path.basename(path)} {number}"
    place = zlib.crc32(text.encode()) / 2**32
    for split, share in rows["fractions"].items():
        if place < share:
            return split
        place -= share
    return split


def _divide(rows, fractions, seed):
    """Divides rows by shares, at random; each part keeps the rows' order."""
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    ends = np.round(np.cumsum([*fractions.values()]) * len(rows)).astype(int)
    parts = np.split(np.array(order, int), ends[:-1])
    return {
        split: [rows[i] for i in sorted(part)]
        for split, part in zip(fractions, parts, strict=True)
    }


def _fill(line, inputs, targets):
    """Returns the texts of both templates; a UserError says why a row is bad."""
    if line.problem:
        raise UserError(line.problem)
    answers = [line.text(*field) for field in _fields(targets)]
    if not any((text or "").strip() for text in answers):
        raise UserError("empty target")
    return [fill(inputs, line), fill(targets, line)]


def fill(template, line):
    """Returns the text of a template; a ValueError says why a `Line` is bad."""
    if line.problem:
        raise UserError(line.problem)
    parts = []
    for text, field in _parts(template):
        parts.append(text)
        if field:
            cell = line.text(*field)
            if cell is None:
                raise UserError(f"no value of {field[0]}")
            parts.append(cell)
    return "".join(parts)


def template_columns(template):
    """Returns the names of the columns in a template."""
    return [name for name, _ in _fields(template)]


def _fields(template):
    return [field for _, field in _parts(template) if field]


@functools.cache
def _parts(template):
    """The parts of a template: (text, the (column, format) that follows or None)."""
    parts = []
    for literal, name, spec, conversion in string.Formatter().parse(template):
        if name is not None:
            if not name or conversion or "{" in spec:
                raise UserError(
                    "expected a column's name or number in the braces, perhaps with a "
                    "format as in {price:.2f}"
                )
            if re.search(r"\d{4}", spec):
                raise UserError(f"the format {spec!r} writes thousands of characters")
            check_format(spec)
        parts.append((literal, name and (name, spec)))
    return parts


def _check(files, rows, inputs, targets):
    if isinstance(files, str) and isinstance(rows.fractions, dict):
        for split, share in rows.fractions.items():
            name = f"fractions[{split!r}]"
            check_range(name, share, "a number above 0", lambda x: x > 0)
        if not math.isclose(sum(rows.fractions.values()), 1):
            raise UserError(
                "fractions must sum to 1, such as {'train': 0.9, "
                f"'validation': 0.1}}. Received: fractions={rows.fractions!r}"
            )
    elif not isinstance(files, dict) or not files or rows.fractions is not None:
        raise UserError(
            "files must be a dictionary such as {'train': 'train.tsv', 'validation': "
            "'dev.tsv'}, or one file with fractions={'train': 0.9, 'validation': "
            f"0.1}}. Received: files={files!r}, fractions={rows.fractions!r}"
        )
    if isinstance(files, dict):
        check_paths(**{f"files[{split!r}]": file for split, file in files.items()})
    names = rows.columns
    several = isinstance(names, (list, tuple, type(None)))
    if not several or not all(isinstance(name, str) for name in names or ()):
        raise UserError(
            f"columns must be a list of str, or None. Received: columns={names!r:.200}"
        )
    check_choices(("raise", "skip"), on_bad_rows=rows.on_bad_rows)
    for argument, template in (("inputs", inputs), ("targets", targets)):
        try:
            fields = _fields(template)
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{argument} must be text with columns in braces, such as 'premise: "
                f"{{premise}}', and braces themselves doubled. Received: {template!r} "
                f"({error})."
            ) from None
        if not fields and argument == "targets":
            raise UserError(
                f"targets must name a column, such as '{{label}}'. Received: "
                f"{template!r}."
            )
