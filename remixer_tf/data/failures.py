"""Errors of datasets as plain sentences."""

import collections.abc
import contextlib
import fnmatch
import os
import re

import seqio
import tensorflow as tf

from remixer_tf.checkpoints.damage import first_line
from remixer_tf.errors import (
    QUOTE_END,
    QUOTE_START,
    MissingFileError,
    StorageError,
    UserError,
    quoted,
    quoted_errors,
    shorten,
)

_OF_SEQIO = "Task dataset", "Dataset has too few files"  # how its messages begin


def how_to_fetch(name):
    """Returns the end of a sentence: how to fetch a dataset of TensorFlow Datasets."""
    return (
        "run this where there is a network, and name the folder of its data in "
        "TFDS_DATA_DIR (C4 needs pip install apache-beam): "
        'python -c "import tensorflow_datasets as tfds; '
        f'tfds.load({name!r}, try_gcs=True)"'
    )


def files_near(path, pattern):
    """A sentence with some files like `pattern` where `path` was expected."""
    folder = path if tf.io.gfile.isdir(path) else os.path.dirname(path) or "."
    if not tf.io.gfile.isdir(folder):
        return f" There is no folder {folder!r} either."
    try:
        names = sorted(fnmatch.filter(tf.io.gfile.listdir(folder), pattern))
    except (UnicodeDecodeError, tf.errors.OpError):  # It may not be listed.
        return ""
    return f" In its folder: {shorten(names)}." if names else ""


def is_a_folder(path, pattern):
    """Returns the error for a folder in place of a vocabulary's file."""
    names = files_near(path, pattern)
    return MissingFileError(f"{path!r} is a folder. Name a vocabulary's file.{names}")


def fail_unless(condition, message):
    """Returns an op for `tf.data.Dataset.map` that fails with `message`, a string."""
    text = tf.strings.join([QUOTE_START, message, QUOTE_END])
    return tf.debugging.Assert(condition, [text])


@contextlib.contextmanager
def data_errors():
    """Around `next(iterator)`: an error of the data becomes a plain ValueError.

    It may be of `fail_unless`, of Python that a dataset calls, or a damaged record.
    """
    try:
        with quoted_errors():
            yield
    except tf.errors.DataLossError as error:
        raise UserError(
            f"A file that the task reads is damaged: {first_line(error)}. Copy the "
            "task's files again. Those of a cache are compared with their checksums "
            "when training starts: run the same command again to see which."
        ) from None


@contextlib.contextmanager
def reading(task, split):
    """Around reading a split of a `seqio.Task`: an error names the task and its files.

    An error of files, file systems and TensorFlow Datasets becomes one line. An error
    of the user's own code keeps its traceback, and has a note.
    """
    where, source = f"{task.name} {split}", getattr(task, "source", None)
    try:
        of_files = _pattern(source, split, where)
        yield
    except UserError:
        raise
    except (OSError, tf.errors.OpError, no_dataset()) as error:
        if found := quoted(error):
            raise found from None
        missing = FileNotFoundError, tf.errors.NotFoundError, no_dataset()
        kind = MissingFileError if isinstance(error, missing) else StorageError
        if "Traceback" not in str(error):  # as of Python that a dataset calls
            reason = f"{where} cannot be read{of_files}: {_reason(error)}."
            raise kind(reason) from error
        _add_place(error, where)
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith(_OF_SEQIO):
            raise UserError(f"{where}: {first_line(error)}.") from error
        _add_place(error, where)
        raise


def no_dataset():
    """Returns the error of TensorFlow Datasets about an unknown dataset, a class."""
    from tensorflow_datasets.core.registered import DatasetNotFoundError  # late: JAX

    return DatasetNotFoundError


def _add_place(error, where):
    error.add_note(f"This was raised while {where} was read.")


def _pattern(source, split, where):
    """Returns " (PATTERN)" if a file of the source exists; else ""."""
    if not isinstance(source, seqio.FileDataSource):
        return ""
    pattern = source._split_to_filepattern.get(split)
    names = [pattern] if isinstance(pattern, str) else pattern
    if not isinstance(names, collections.abc.Collection) or not all(
        isinstance(name, str) for name in names
    ):
        raise UserError(
            f"{where} reads files by a pattern, such as 'data/*.txt', or by a list of "
            f"their paths. Received: {pattern!r:.200}"
        )
    if not source.list_shards(split):
        near = "".join(files_near(name, "*") for name in [*names][:1])
        raise MissingFileError(
            f"{where} reads {pattern!r}, and no such file is there.{near}"
        )
    return f" ({shorten([*names])})"


def _reason(error):
    """One line of an error, without the places in TensorFlow's graphs."""
    lines = str(getattr(error, "message", error)).splitlines()
    inner = re.search(r"transformation with iterator: [^ ]*: (.*)", "".join(lines[:1]))
    if inner:
        return inner[1].rstrip(".")
    return first_line(error)
