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
import json
import math
import random
import string

import seqio

from remixer_tf.errors import UserError
from remixer_tf.tasks.bad_rows import BadRows, check_on_bad_rows
from remixer_tf.tasks.metrics import METRICS, OF_T5
from remixer_tf.tasks.rows import TOKENIZE, RowSource, byte_features
from remixer_tf.tasks.t5_library import import_t5
from remixer_tf.tasks.table_files import read_table


@dataclasses.dataclass(frozen=True)
class TableRows:
    """How the rows of a task's tables are read.

    A row is bad that has another number of columns, bytes that are not UTF-8, quotes or
    JSON that cannot be read, no value for a column of the inputs, none or blanks alone
    for all columns of the targets, or texts that a later split has too (so that a test
    split stays whole).

    Attributes:
        fractions: dictionary, split -> share of the rows of one file; the shares sum
            to 1. Each row is in one split, drawn by `seed`, and rows keep their order.
        seed: int.
        header: bool, whether the first line of a TSV or CSV file names its columns.
        columns: list of str, names of TSV's and CSV's columns in place of the header's.
        on_bad_rows: "raise", or "skip": they are left out, and counted in a warning.
    """

    fractions: dict | None = None
    seed: int = 0
    header: bool = True
    columns: list | None = None
    on_bad_rows: str = "raise"


def table_task(
    files,
    inputs,
    targets,
    name="table",
    rows=None,
    metrics=("accuracy",),
    shuffle_buffer_size=100_000,
):
    """Makes a seqio task from tables, such as TSV, CSV or JSON lines.

    Examples have `inputs` and `targets` (bytes, which `get_task.vocabulary` replaces,
    and EOS), their texts `*_pretokenized`, and the number of the row's `line`. Rows too
    long for the model are counted, see `LongExamples`.

    Args:
        files: dictionary, split -> file, see `remixer_tf.tasks.table_files`; or one
            file, which `TableRows.fractions` divides.
        inputs, targets: str, text with columns in braces by name or, of TSV and CSV,
            by number from 0: "premise: {premise}", "{0}". A brace itself is doubled.
        name: str, of the task.
        rows: `TableRows`; None for its defaults.
        metrics: list of names, see `remixer_tf.tasks.metrics.METRICS`.
        shuffle_buffer_size: int; as large as the training split, it shuffles fully.

    Returns:
        a `seqio.Task`. It is not in seqio's registry.

    Raises:
        ValueError: an argument does not fit. When examples are asked for: bad rows, a
            column that is in no row, or a split without rows.
        FileNotFoundError: when examples are asked for: there is no such file.
    """
    rows = rows or TableRows()
    _check(files, rows, inputs, targets)
    if isinstance(metrics, str) or (unknown := set(metrics) - set(METRICS)):
        raise UserError(
            f"metrics must be a list of {', '.join(METRICS)}. Received: "
            f"{metrics if isinstance(metrics, str) else sorted(unknown)}."
        )
    if OF_T5 & {*metrics}:
        import_t5("evaluation.metrics")  # now, not after hours of training
    # As text, so that a table that several tasks read is read once.
    table = json.dumps([name, files, inputs, targets, dataclasses.asdict(rows)])
    return seqio.Task(
        name,
        source=RowSource(
            lambda split: _read(table)[split],
            tuple(rows.fractions or files),
            names=("inputs", "targets", "line"),
        ),
        preprocessors=TOKENIZE,
        output_features=byte_features(),
        metric_fns=[METRICS[metric] for metric in metrics],
        shuffle_buffer_size=shuffle_buffer_size,
    )


@functools.lru_cache(maxsize=8)
def _read(table):
    """Returns {split: list of (inputs, targets, line)}."""
    name, files, *templates, rows = json.loads(table)
    splits = _read_splits(files, templates, rows)
    bad, examples = BadRows(name), {}
    for split, lines in splits.items():
        good = examples[split] = []
        for line in lines:
            problem = line.problem or _problem(line.values, *templates)
            if problem:
                bad.add(split, problem, line.number)
            else:
                texts = (_fill(text, line.values) for text in templates)
                good.append((*texts, line.number))
    last = {}  # (inputs, targets) -> the last split that has them
    for split, good in examples.items():
        last |= dict.fromkeys((row[:2] for row in good), split)
    for split, good in examples.items():
        for row in good:
            if (other := last[row[:2]]) != split:
                bad.add(split, f"also in {other}", row[2])
        good[:] = [row for row in good if last[row[:2]] == split]
    if not isinstance(files, dict):
        files = dict.fromkeys(splits, files)
    number = sum(map(len, splits.values()))
    skip = rows["on_bad_rows"] == "skip"
    bad.tell(files, number, skip, "TableRows.on_bad_rows = 'skip'")
    for split, good in examples.items():
        if not good:
            raise UserError(
                f"{name} {split} has no rows that can be used: {files[split]} gave "
                f"{len(splits[split]):,} rows."
            )
    return examples


def _read_splits(files, templates, rows):
    """Returns {split: list of `Line`}, good and bad ones."""
    if not isinstance(files, dict):
        lines = _read_file(files, templates, rows)
        return _divide(lines, rows["fractions"], rows["seed"])
    return {k: _read_file(path, templates, rows) for k, path in files.items()}


def _read_file(path, templates, rows):
    names, lines = read_table(path, rows["header"], rows["columns"])
    for template in templates:
        for field in _fields(template):
            if field not in names:
                raise UserError(
                    f"{path} has no column {field!r}, which {template!r} names. It "
                    f"has: {', '.join(names) or 'none'}."
                )
    return lines


def _divide(rows, fractions, seed):
    """Divides rows by shares: each is in one part, and parts keep the rows' order."""
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    ends = [round(end * len(rows)) for end in itertools.accumulate(fractions.values())]
    ends[-1] = len(rows)
    return {
        split: [rows[i] for i in sorted(order[start:end])]
        for split, (start, end) in zip(
            fractions, itertools.pairwise([0, *ends]), strict=True
        )
    }


def _problem(values, inputs, targets):
    """What is wrong with the values of a row, or None."""
    if not any((values.get(x) or "").strip() for x in _fields(targets)):
        return "empty target"
    for field in _fields(inputs) + _fields(targets):
        if values.get(field) is None:
            return f"no value of {field}"
    return None


def _fill(template, values):
    return "".join(
        literal + (values[field] if field is not None else "")
        for literal, field in _parts(template)
    )


def _fields(template):
    """The columns that a template names, a list."""
    return [field for _, field in _parts(template) if field is not None]


@functools.cache
def _parts(template):
    """The parts of a template: (text, the column after it or None)."""
    parts = []
    for literal, field, spec, conversion in string.Formatter().parse(template):
        if field is not None and (not field or spec or conversion):
            raise UserError("expected a column's name or number alone in the braces")
        parts.append((literal, field))
    return parts


def _check(files, rows, inputs, targets):
    """Raises a ValueError of what no table fits."""
    if isinstance(files, str) and isinstance(rows.fractions, dict):
        shares = rows.fractions.values()
        if min(shares, default=0) <= 0 or not math.isclose(sum(shares), 1):
            raise UserError(
                "fractions must be above 0 and sum to 1, such as {'train': 0.9, "
                f"'validation': 0.1}}. Received: fractions={rows.fractions!r}"
            )
    elif not isinstance(files, dict) or not files or rows.fractions is not None:
        raise UserError(
            "files must be a dictionary such as {'train': 'train.tsv', 'validation': "
            "'dev.tsv'}, or one file with fractions={'train': 0.9, 'validation': "
            f"0.1}}. Received: files={files!r}, fractions={rows.fractions!r}"
        )
    check_on_bad_rows(rows.on_bad_rows)
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
