"""Reads files of inference: pairs of a premise and a hypothesis, and their class.

ANLI, ConjNLI, HANS, MultiNLI and SNLI are JSON lines or TSV with a header; each set has
its own names for the columns.
"""

from absl import logging

from remixer_tf.errors import UserError
from remixer_tf.tasks.rows import RowSource
from remixer_tf.tasks.table_files import read_table

PREMISE = ("premise", "Premise", "sentence1", "context")
HYPOTHESIS = ("hypothesis", "Hypothesis", "sentence2", "statement")
LABEL = ("label", "Label", "gold_label")
NO_LABEL = -1  # as in TensorFlow Datasets
# Classes in the order of their ids in GLUE and TensorFlow Datasets.
THREE_CLASSES = ["entailment", "neutral", "contradiction"]
TWO_CLASSES = ["entailment", "not_entailment"]


def pair_source(folder, files, classes, premise="premise", where=None, columns=()):
    """A `RowSource` of pairs: "hypothesis", the premise, "label", and the columns.

    Args:
        folder: a `DataFolder`.
        files: dictionary, split -> names that its file may have, see `find_file`.
        classes, where, columns: see `read_pairs`.
        premise: str, the premise's name in an example.
    """

    def read_rows(split):
        path = folder.find_file(*files[split])
        return read_pairs(path, classes, where, columns)

    names = ("hypothesis", premise, "label", *columns)
    return RowSource(read_rows, tuple(files), names)


def read_pairs(path, classes, where=None, columns=()):
    """Reads the pairs of a file.

    Pairs labelled "-", on which SNLI's and MultiNLI's annotators disagreed, are left
    out and counted in the log.

    Args:
        path: str, a file for `read_table`.
        classes: list of str, the labels; a file may have their first letters.
        where: None, or a function of a row, a dictionary of str: False leaves it out.
        columns: names of further columns to read.

    Returns:
        list of (hypothesis, premise, index in `classes`, *values of `columns`). The
        index is `NO_LABEL` if the file has no labels.

    Raises:
        ValueError: a column is missing, or a row cannot be used; the message has its
            line.
    """
    names, lines = read_table(path)
    premise, hypothesis, *_ = (
        _find(path, names, wanted)
        for wanted in (PREMISE, HYPOTHESIS, *((column,) for column in columns))
    )
    label = next((name for name in LABEL if name in names), None)
    numbers = {name: i for i, name in enumerate(classes)}
    numbers |= {name[0]: i for i, name in enumerate(classes)} | {None: NO_LABEL}
    pairs, disputed = [], 0
    for line in lines:
        values = line.values or {}
        problem = line.problem
        word = values.get(label) if label else None
        if not problem and label and word != "-" and (word or "") not in numbers:
            problem = f"{label} {word!r} is none of {', '.join(classes)}"
        if not problem and None in (values.get(premise), values.get(hypothesis)):
            problem = f"no {premise} or no {hypothesis}"
        if problem:
            raise UserError(f"{path}, line {line.number}: {problem}.")
        if where and not where(values):
            continue
        if word == "-":
            disputed += 1
        else:
            more = (values[column] for column in columns)
            pairs.append((values[hypothesis], values[premise], numbers[word], *more))
    if disputed:
        logging.info("%s: %d pairs labelled '-' are left out", path, disputed)
    return pairs


def _find(path, names, wanted):
    for name in wanted:
        if name in names:
            return name
    raise UserError(
        f"{path} has no column {' or '.join(wanted)}. It has: "
        f"{', '.join(name for name in names if not name.isdigit()) or 'none'}."
    )
