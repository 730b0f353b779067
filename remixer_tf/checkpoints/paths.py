"""Where the relative paths of a configuration start: where it was written.

A run's configuration names its vocabularies relative to the run's folder, and other
files as the user named them, from the folder where training was started. It says where
that is, seen from the run's folder: both can move together.
"""

import filecmp
import glob
import os

from remixer_tf.errors import UserError

_starts = []
_run = None


def relative_paths(folders=(".",)):
    """Holds what gin binds: folders where relative paths start, from the run's."""
    return folders


def start_from(folders, run=None):
    """Sets the folders, beside the current one, where relative paths start.

    Args:
        folders: list of str.
        run: str, the folder of the run that is read and not trained; None for none.
    """
    global _run
    _starts[:], _run = folders, run


def starts():
    """Returns the folders that `start_from` was given."""
    return [*_starts]


def run_being_read():
    """Returns the folder of the run that is read and not trained, or None."""
    return _run


def locate(path):
    """Finds the file or folder that a configuration means.

    Returns the path below the folder that has it; below the current one if none has.
    `path` may be relative, with ~, or a pattern.

    Raises:
        ValueError: several folders have one, and the files are not equal.
    """
    path = os.path.expanduser(os.fspath(path))
    places = [os.path.join(folder, path) for folder in ("", *_starts)]
    found = {
        os.path.realpath(place): place
        for place in reversed(places)
        if os.path.exists(place) or glob.glob(place)
    }
    first, *others = [*found.values()] or [path]
    if not all(os.path.isfile(x) and filecmp.cmp(first, x, False) for x in others):
        raise UserError(
            f"{path!r} can mean {' or '.join(sorted(found))}: where this program was "
            "started, or where the run was. Name the one you mean by its whole path."
        )
    return first


def starts_seen_from(folder):
    """Returns the folders where relative paths start, relative to that of a run.

    It is the first; the current one follows.
    """
    folder = os.path.realpath(folder)
    places = map(os.path.realpath, (folder, os.curdir, *_starts))
    return [*dict.fromkeys(os.path.relpath(place, folder) for place in places)]
