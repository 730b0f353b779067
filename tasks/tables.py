"""Tasks that a gin file describes: tables in files, made text by templates.

    TASK = @table_task()
    table_task.name = 'nli'
    table_task.files = {'train': 'train.tsv', 'validation': 'dev.tsv'}
    table_task.inputs = 'nli hypothesis: {hypothesis} premise: {premise}'
    table_task.targets = '{label}'
    table_task.metrics = ['accuracy', 'per_class']

Nothing is read before examples are asked for: answering needs no file. All is held in
memory.
"""

import dataclasses
import functools
import itertools
import math
import random
import string

import seqio
from absl import logging

from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.errors import UserError
from remixer_tf.tasks.bad_rows import BadRows
from remixer_tf.tasks.metrics import METRICS, OF_T5
from remixer_tf.tasks.rows import TOKENIZE, RowSource
from remixer_tf.tasks.t5_library import import_t5
from remixer_tf.tasks.table_files import read_table


def table_task(
    files,
    inputs,
    targets,
    name="table",
    fractions=None,
    seed=0,
    header=True,
    columns=None,
    metrics=("accuracy",),
    on_bad_rows="raise",
    shuffle_buffer_size=100_000,
):
    """Makes a seqio task from tables, such as TSV, CSV or JSON lines.

    Examples have `inputs` and `targets` (bytes, which `get_task.vocabulary` replaces,
    and EOS), their texts `*_pretokenized`, and the number of the row's `line`.

    A row is bad that has another number of columns, bytes that are not UTF-8, quotes or
    JSON that cannot be read, no value for a column of `inputs`, none or blanks alone
    for all columns of `targets`, or texts that a later split of `files` or `fractions`
    has too (so that a test split stays whole). Rows too long for the model are counted
    by `train_dataset.over_length`.

    Args:
        files: dictionary, split -> file, see `remixer_tf.tasks.table_files`; or one
            file, which `fractions` divides.
        inputs, targets: str, text with columns in braces by name or, of TSV and CSV,
            by number from 0: "premise: {premise}", "{0}". A brace itself is doubled.
        name: str, of the task.
        fractions: dictionary, split -> share of the rows of one file; the shares sum
            to 1. Each row is in one split, drawn by `seed`, and rows keep their order.
        seed: int.
        header: bool, whether the first line of a TSV or CSV file names its columns.
        columns: list of str, names of TSV's and CSV's columns in place of the header's.
        metrics: list of names, see `remixer_tf.tasks.metrics.METRICS`.
        on_bad_rows: "raise", or "skip": they are left out, and counted in a warning.
        shuffle_buffer_size: int; as large as the training split, it shuffles fully.

    Returns:
        a `seqio.Task`. It is not in seqio's registry.

    Raises:
        ValueError: an argument does not fit. When examples are asked for: bad rows, a
            column that is in no row, or a split without rows.
        FileNotFoundError: when examples are asked for: there is no such file.
    """
    _check_splits(files, fractions)
    if on_bad_rows not in ("raise", "skip"):
        raise UserError(
            f"on_bad_rows must be 'raise' or 'skip'. Received: {on_bad_rows!r}."
        )
    if isinstance(metrics, str) or (unknown := set(metrics) - set(METRICS)):
        raise UserError(
            f"metrics must be a list of {', '.join(METRICS)}. Received: "
            f"{metrics if isinstance(metrics, str) else sorted(unknown)}."
        )
    if OF_T5 & {*metrics}:
        import_t5("evaluation.metrics")  # now, not after hours of training
    for argument, template in (("inputs", inputs), ("targets", targets)):
        if not _fields(template, argument) and argument == "targets":
            raise UserError(
                f"targets must name a column, such as '{{label}}'. Received: "
                f"{template!r}."
            )
    divided = isinstance(files, str)
    table = _Table(
        name=name,
        splits=tuple(fractions or files),
        files=(files,) if divided else tuple(files.values()),
        shares=tuple(fractions.values()) if divided else (),
        templates=(inputs, targets),
        seed=seed,
        header=header,
        columns=None if columns is None else tuple(columns),
        skip=on_bad_rows == "skip",
    )
    return seqio.Task(
        name,
        source=RowSource(
            lambda split: _read(table)[split],
            table.splits,
            names=("inputs", "targets", "line"),
        ),
        preprocessors=TOKENIZE,
        output_features={
            feature: seqio.Feature(byte_vocabulary())
            for feature in ("inputs", "targets")
        },
        metric_fns=[METRICS[metric] for metric in metrics],
        shuffle_buffer_size=shuffle_buffer_size,
    )


@dataclasses.dataclass(frozen=True)
class _Table:
    """What decides the rows of a task. `files` has one file, or one a split."""

    name: str
    splits: tuple
    files: tuple
    shares: tuple
    templates: tuple
    seed: int
    header: bool
    columns: tuple | None
    skip: bool


@functools.lru_cache(maxsize=8)
def _read(table):
    """Returns {split: list of (inputs, targets, line)}."""
    splits, read = _read_splits(table)
    bad = BadRows(table.name)
    examples = {}
    for split, lines in splits.items():
        rows = examples[split] = []
        for line in lines:
            problem = line.problem or _problem(line.values, *table.templates)
            if problem:
                bad.add(split, problem, line.number)
            else:
                texts = (_fill(text, line.values) for text in table.templates)
                rows.append((*texts, line.number))
    later = {}  # (inputs, targets) -> the last split that has them
    for split, rows in examples.items():
        later |= dict.fromkeys((row[:2] for row in rows), split)
    for split, rows in examples.items():
        for row in rows:
            if (other := later[row[:2]]) != split:
                bad.add(split, f"also in {other}", row[2])
        rows[:] = [row for row in rows if later[row[:2]] == split]
    files = dict(zip(table.splits, itertools.cycle(table.files)))
    if bad.count() and table.skip:
        logging.warning("%s", bad.report(files, read, "bad and skipped"))
    elif bad.count():
        raise UserError(
            f"{bad.report(files, read, 'bad')}\nCorrect them, or leave them out with "
            "table_task.on_bad_rows = 'skip'."
        )
    for split, rows in examples.items():
        if not rows:
            raise UserError(
                f"{table.name} {split} has no rows that can be used: {files[split]} "
                f"gave {len(splits[split]):,} rows."
            )
    return examples


def _read_splits(table):
    """Returns {split: list of `Line`}, good and bad ones, and how many there are."""
    tables = []
    for path in table.files:
        names, lines = read_table(path, table.header, table.columns)
        tables.append(lines)
        for template in table.templates:
            for field in _fields(template, "inputs and targets"):
                if field not in names:
                    raise UserError(
                        f"{path} has no column {field!r}, which {template!r} names. It "
                        f"has: {', '.join(names) or 'none'}."
                    )
    if table.shares:
        tables = _divide(tables[0], table.shares, table.seed)
    splits = dict(zip(table.splits, tables, strict=True))
    return splits, sum(map(len, tables))


def _divide(rows, shares, seed):
    """Divides rows by shares: each is in one part, and parts keep the rows' order."""
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    ends = [round(end * len(rows)) for end in itertools.accumulate(shares)]
    ends[-1] = len(rows)
    return [
        [rows[i] for i in sorted(order[start:end])]
        for start, end in itertools.pairwise([0, *ends])
    ]


def _problem(values, inputs, targets):
    """What is wrong with the values of a row, or None."""
    if not any((values.get(x) or "").strip() for x in _fields(targets, "targets")):
        return "empty target"
    for field in _fields(inputs, "inputs") + _fields(targets, "targets"):
        if values.get(field) is None:
            return f"no value of {field}"
    return None


def _fill(template, values):
    return "".join(
        literal + (values[field] if field is not None else "")
        for literal, field in _parts(template)
    )


def _fields(template, argument):
    """The columns that a template names, a list.

    Raises:
        ValueError: it is not a template.
    """
    try:
        return [field for _, field in _parts(template) if field is not None]
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{argument} must be text with columns in braces, such as 'premise: "
            f"{{premise}}', and braces themselves doubled. Received: {template!r} "
            f"({error})."
        ) from None


@functools.cache
def _parts(template):
    """The parts of a template: (text, the column after it or None)."""
    parts = []
    for literal, field, spec, conversion in string.Formatter().parse(template):
        if field is not None and (not field or spec or conversion):
            raise UserError("expected a column's name or number alone in the braces")
        parts.append((literal, field))
    return parts


def _check_splits(files, fractions):
    """Raises ValueError unless splits are files, or fractions of one file."""
    if isinstance(files, str) and isinstance(fractions, dict):
        shares = fractions.values()
        if min(shares, default=0) > 0 and math.isclose(sum(shares), 1):
            return
        raise UserError(
            "fractions must be above 0 and sum to 1, such as {'train': 0.9, "
            f"'validation': 0.1}}. Received: fractions={fractions!r}"
        )
    if not isinstance(files, dict) or not files or fractions is not None:
        raise UserError(
            "files must be a dictionary such as {'train': 'train.tsv', 'validation': "
            "'dev.tsv'}, or one file with fractions={'train': 0.9, 'validation': "
            f"0.1}}. Received: files={files!r}, fractions={fractions!r}"
        )
