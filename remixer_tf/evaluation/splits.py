"""Which splits are scored: those asked for, else those that have labels."""

import numpy as np
import seqio

from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.pipeline import get_task
from remixer_tf.errors import UserError

_FIRST = 16  # examples that tell whether a split has labels
# What T5's tasks write for the label -1 of a test set, STS-B's and that of plain text.
_NO_LABEL = (b"<unk>", b"-1.0", b"-1")


def data_of(run, task=None, vocabulary=None, feature_lengths=None):
    """Returns a task and lengths: those given, else those of a run.

    Args:
        run: a `Run`; None where task and lengths are given.
        task: None, or registered name, `seqio.Task` or `seqio.Mixture`. It gets the
            run's vocabulary too, unless one is given.
        vocabulary, feature_lengths: None, or as in `Run`.

    Returns:
        the `seqio.Task` or `seqio.Mixture`, and dictionary of ints.
    """
    if run is None:
        if task is None or feature_lengths is None:
            raise UserError("an evaluation needs a run, or a task and feature_lengths.")
        return get_task(task, vocabulary), feature_lengths
    task = run.get_task() if task is None else task
    lengths = run.feature_lengths if feature_lengths is None else feature_lengths
    return get_task(task, vocabulary or run.vocabulary), lengths


def default_splits(task):
    """Returns the splits of a task or mixture that are not for training, a list."""
    names = (name for subtask in seqio.get_subtasks(task) for name in subtask.splits)
    return list(dict.fromkeys(n for n in names if not n.startswith("train")))


def first_examples(task, split, feature_lengths):
    """Returns the first few examples of a split, which tell of what kind all are."""
    return read_examples(task, split, feature_lengths, _FIRST)


def have_labels(examples):
    """Whether there is anything to score: one of the targets is a label.

    Judged by the data, since names do not tell: SuperGLUE's diagnostics have labels in
    their test sets, COGS has them in `gen`, and GLUE's test sets have none.

    Args:
        examples: list of dictionaries of NumPy arrays, as `first_examples` gives.

    Returns:
        bool. False if every example has the label -1 or the targets `<unk>`.
    """
    return not all(map(_is_unlabelled, examples))


def _is_unlabelled(example):
    text = example.get("targets_pretokenized")
    if isinstance(text, bytes) and text in _NO_LABEL:
        return True
    label = example.get("label", example.get("targets"))
    return label is not None and np.size(label) > 0 and bool(np.all(label == -1))
