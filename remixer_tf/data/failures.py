"""Errors of datasets as plain sentences."""

import contextlib
import fnmatch
import os
import re

import tensorflow as tf

from remixer_tf.checkpoints.damage import first_line
from remixer_tf.errors import UserError, shorten

_START, _END = "data error <<", ">>"


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


def fail_unless(condition, message):
    """Returns an op for `tf.data.Dataset.map` that fails with `message`, a string."""
    return tf.debugging.Assert(condition, [tf.strings.join([_START, message, _END])])


@contextlib.contextmanager
def data_errors():
    """Around `next(iterator)`: a failed `fail_unless` becomes a plain ValueError.

    So does a record that TensorFlow finds damaged.
    """
    try:
        yield
    except tf.errors.DataLossError as error:
        raise UserError(
            f"A file that the task reads is damaged: {first_line(error)}. Copy the "
            "task's files again. Those of a cache are compared with their checksums "
            "when training starts: run the same command again to see which."
        ) from None
    except tf.errors.InvalidArgumentError as error:
        found = re.search(f"{_START}(.*?){_END}", error.message, re.DOTALL)
        if not found:
            raise
        raise UserError(found[1]) from None
