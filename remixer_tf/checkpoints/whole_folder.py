"""Folders that appear whole, or not at all."""

import contextlib
import os
import re
import time

import tensorflow as tf

from remixer_tf.checkpoints.damage import first_line
from remixer_tf.checkpoints.processes import describe, machine
from remixer_tf.errors import ExistingFileError, StorageError

_ABANDONED_SECONDS = 24 * 3600


@contextlib.contextmanager
def whole_folder(path):
    """Writes a folder: it appears when the block ends without an error.

    What killed processes left half written beside it is removed first.

    Args:
        path: str, of a folder that is empty or not there, local or gs://.

    Yields:
        str, the folder to write into.

    Raises:
        OSError: it cannot be written.
    """
    path = path.rstrip("/")
    temporary = temporary_name(path)
    try:
        tf.io.gfile.makedirs(temporary)
        yield temporary
        tf.io.gfile.rename(temporary, path, overwrite=True)
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise StorageError(f"Cannot write {path}: {reason}") from error
    finally:
        if tf.io.gfile.exists(temporary):
            tf.io.gfile.rmtree(temporary)


def temporary_name(path):
    """Returns the name that a file or folder has until it is whole.

    What killed processes left half written beside it is removed.
    """
    remove_abandoned(os.path.dirname(path))
    return f"{path}.writing-{machine() or '0' * 8}-{os.getpid()}"


def remove_abandoned(parent):
    """Removes half written files and folders in `parent` whose writers are gone.

    A writer of this machine is known by its id, another one by having written nothing
    for a day. Object stores have no such folders.
    """
    if "://" in parent or not os.path.isdir(parent or "."):
        return
    for name in os.listdir(parent or "."):
        match = re.search(r"\.writing-([0-9a-f]{8})-(\d+)$", name)
        if not match:
            continue
        path = os.path.join(parent, name)
        if match[1] == machine():
            gone = describe(int(match[2])) is None
        else:
            gone = time.time() - _newest(path) > _ABANDONED_SECONDS
        if gone:
            with contextlib.suppress(OSError, tf.errors.OpError):
                remove = tf.io.gfile.rmtree if os.path.isdir(path) else os.unlink
                remove(path)


def check_absent(folder):
    """Raises FileExistsError if there is an export of that name."""
    if tf.io.gfile.exists(folder):
        raise ExistingFileError(
            f"There is an export {folder} already. Remove it, or choose another "
            "checkpoint with --step."
        )


def _newest(path):
    """Returns when a file, or something in a folder, was written last, in seconds."""
    times, paths = [0.0], [path]
    for root, folders, names in os.walk(path):
        paths += [os.path.join(root, name) for name in (*folders, *names)]
    for place in paths:
        with contextlib.suppress(OSError):
            times.append(os.path.getmtime(place))
    return max(times)
