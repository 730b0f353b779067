"""Folders that appear whole, or not at all."""

import contextlib
import os

import tensorflow as tf


@contextlib.contextmanager
def whole_folder(path):
    """Writes a folder: it appears when the block ends without an error.

    Args:
        path: str, of a folder that is empty or not there, local or gs://.

    Yields:
        str, the folder to write into.

    Raises:
        OSError: it cannot be written.
    """
    temporary = f"{path.rstrip('/')}.writing-{os.getpid()}"
    try:
        tf.io.gfile.makedirs(temporary)
        yield temporary
        tf.io.gfile.rename(temporary, path, overwrite=True)
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "message", None) or getattr(error, "strerror", error)
        raise OSError(f"Cannot write {path}: {reason}") from error
    finally:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.rmtree(temporary)


def check_absent(folder):
    """Raises FileExistsError if there is an export of that name."""
    if tf.io.gfile.exists(folder):
        raise FileExistsError(
            f"There is an export {folder} already. Remove it, or choose another "
            "checkpoint with --step."
        )
