"""Finds files by the relative paths of a configuration, from where it was written.

A run's configuration names vocabularies relative to the run's folder. It names other
files as the user did, relative to the folder where training was started. It records
that folder relative to the run's, so both can move together.
"""

import filecmp
import glob
import os

from remixer_tf.errors import UserError

_starts = []
_run = None


def relative_paths(folders=(".",)):
    """Holds gin's binding: folders where relative paths start, seen from the run's."""
    return folders


def start_from(folders, run=None):
    """Sets the folders where relative paths start, besides the current one.

    `run` is the folder of a run that is read and not trained, or None.
    """
    global _run
    _starts[:], _run = folders, run


def starts():
    """Returns the folders that `start_from` set."""
    return [*_starts]


def run_being_read():
    """Returns the folder of the run that is read and not trained, or None."""
    return _run


def locate(path):
    """Returns the path of the file or folder that a configuration names.

    `path` may be relative, with ~, or a pattern. It is looked for in the folders where
    relative paths start. If none has it, it is relative to the current one. Raises a
    ValueError if several folders have one, and the files are not equal.
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
    """Returns the folders where relative paths start, seen from a run's folder.

    The run's folder comes first, then the current one.
    """
    folder = os.path.realpath(folder)
    places = map(os.path.realpath, (folder, os.curdir, *_starts))
    return [*dict.fromkeys(os.path.relpath(place, folder) for place in places)]
