"""Finds files by the relative paths of a configuration, from where it was written.

A run's configuration names vocabularies relative to the run's folder. It names other
files as the user did, relative to the folder where training was started. It records
that folder relative to the run's, so both can move together.
"""

import filecmp
import glob
import os

from remixer_tf.errors import UserError, check_paths


class Located(str):
    """A path that a configuration names, as `locate` found it.

    A part gets such a path, or a dictionary or list of them, in each parameter with
    this annotation.

    Attributes:
        run: folder of the run that is read and not trained, or None.
    """

    run = None


def relative_paths(folders=(".",)):
    """Holds gin's binding: folders where relative paths start, seen from the run's."""
    return folders


def locate(path, starts=()):
    """Returns the path of the file or folder that a configuration names.

    `path` may be relative, with ~, or a pattern. It is looked for in the current folder
    and in `starts`, where relative paths start. If none has it, it is relative to the
    current one. Raises a ValueError if it is no path, or if several folders have one,
    and the files are not equal.
    """
    if not isinstance(path, str):
        check_paths(path=path)
    path = os.path.expanduser(os.fspath(path))
    places = [os.path.join(folder, path) for folder in ("", *starts)]
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


def located(value, starts, run=None):
    """Returns `Located` for each str in a value; see `locate`."""
    if isinstance(value, dict):
        return {name: located(item, starts, run) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(located(item, starts, run) for item in value)
    if not isinstance(value, str):
        return value
    path = Located(locate(value, starts))
    path.run = run
    return path


def starts_seen_from(folder, starts=()):
    """Returns the folders where relative paths start, seen from a run's folder.

    The run's folder comes first, then the current one.
    """
    folder = os.path.realpath(folder)
    places = map(os.path.realpath, (folder, os.curdir, *starts))
    return [*dict.fromkeys(os.path.relpath(place, folder) for place in places)]
