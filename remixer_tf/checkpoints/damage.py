"""Tells damaged checkpoints from reads that failed."""

import functools
import re
import time

import tensorflow as tf
from absl import logging

from remixer_tf.errors import StorageError

_PAUSES = (1, 3, 10)  # seconds between tries

# tf.train.load_checkpoint raises one class for all errors.
_WORDS_OF_DAMAGE = (
    "sstable",
    "file is corrupt",
    "Checksum does not match",
    "checksum mismatch",
    "Read less bytes than requested",
)


class DamagedError(StorageError):
    """A file of a checkpoint is missing, truncated, or fails its checksum."""


def retried(function):
    """Decorates a function that reads a checkpoint and takes its folder first.

    Missing files, truncated files and failed checksums are damage. Other errors, as of
    a file server that does not answer, are retried. The function raises DamagedError
    for damage, OSError if all retries fail, and ValueError as before.
    """

    @functools.wraps(function)
    def read(folder, *args, **kwargs):
        for pause in (*_PAUSES, None):
            try:
                return function(folder, *args, **kwargs)
            except DamagedError:
                raise
            except (OSError, RuntimeError, IndexError, tf.errors.OpError) as error:
                reason = first_line(error)
                if _is_damage(error):
                    raise DamagedError(
                        f"The checkpoint {folder} is damaged: {reason}. Use another "
                        "step, or a good copy of it."
                    ) from error
                if pause is None:
                    raise StorageError(
                        f"The checkpoint {folder} cannot be read: {reason}. Nothing "
                        "shows that it is damaged. Run the same command again when "
                        "its files can be read."
                    ) from error
                logging.warning(
                    "Reading %s failed, next try in %d s: %s", folder, pause, reason
                )
                time.sleep(pause)

    return read


def first_line(error):
    """Returns the first line of an error's message, without TensorFlow's node names."""
    text = re.sub(
        r"\{\{.*?\}\} ?| \[Op:\w*\]| name: $",
        "",
        str(getattr(error, "message", error)),
    )
    lines = text.splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _is_damage(error):
    return isinstance(
        error, (tf.errors.DataLossError, tf.errors.OutOfRangeError, IndexError)
    ) or any(words in str(error) for words in _WORDS_OF_DAMAGE)
