"""The splits that evaluations read."""

import functools
import hashlib

import numpy as np
import seqio
from absl import logging

from remixer_tf.data.eval_batches import read_examples

_FIRST = 16  # examples that show the kind of all
# T5's tasks write these for the label -1 of a test set, STS-B's and plain text's.
_NO_LABEL = (b"<unk>", b"-1.0", b"-1")


def default_splits(task):
    """Returns the list of splits of a task or mixture that are not for training."""
    names = (name for subtask in seqio.get_subtasks(task) for name in subtask.splits)
    return list(dict.fromkeys(n for n in names if not n.startswith("train")))


class TaskSplit:
    """A split of a `seqio.Task`. Each property is read once, when it is needed.

    For `feature_lengths` and `max_examples` see `read_examples`.
    """

    def __init__(self, task, split, feature_lengths, max_examples=None):
        self.task, self.split = task, split
        self._feature_lengths, self._max_examples = feature_lengths, max_examples
        self._warned = False

    @functools.cached_property
    def missing(self):
        """The FileNotFoundError if it cannot be read, or None."""
        try:
            self.first  # noqa: B018
        except FileNotFoundError as error:
            return error

    def warn_left_out(self):
        """Logs once that evaluations leave out this split, which is missing."""
        if not self._warned:
            names = self.task.name, self.split
            logging.warning("%s %s is left out: %s", *names, self.missing)
        self._warned = True

    @functools.cached_property
    def first(self):
        return read_examples(self.task, self.split, self._feature_lengths, _FIRST)

    @functools.cached_property
    def has_labels(self):
        """Whether it has some, see `have_labels`."""
        found = have_labels(self.first)
        if not found:
            names = self.task.name, self.split
            logging.warning("%s %s has no labels: nothing to score.", *names)
        return found

    @functools.cached_property
    def examples(self):
        limits = self._feature_lengths, self._max_examples
        return read_examples(self.task, self.split, *limits)

    @functools.cached_property
    def hash(self):
        """A str for all features of the examples."""
        digest = hashlib.sha256()
        for example in self.examples:
            for name in sorted(example):
                value = np.asarray(example[name])
                is_text = value.dtype.hasobject
                data = repr(value.tolist()).encode() if is_text else value.tobytes()
                digest.update(f"{name} {value.dtype} {value.shape} ".encode())
                digest.update(data)
        return digest.hexdigest()[:16]


def have_labels(examples):
    """Returns whether one of the targets is a label, and not -1 or `<unk>`.

    A split's name does not say: test sets of SuperGLUE's diagnostics have labels, and
    GLUE's have none.
    """
    return not all(map(_is_unlabelled, examples))


def _is_unlabelled(example):
    text = example.get("targets_pretokenized")
    if isinstance(text, bytes) and text in _NO_LABEL:
        return True
    label = example.get("label", example.get("targets"))
    return label is not None and np.size(label) > 0 and bool(np.all(label == -1))
