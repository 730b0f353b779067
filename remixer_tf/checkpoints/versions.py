"""Which version of remixer_tf wrote a run, a cache or an export."""

import os
import re

from remixer_tf import __version__
from remixer_tf.errors import UserError

HEADER = f"# Written by remixer_tf {__version__}."  # a configuration's first line
# Why a run without this line may not be read.
_BEFORE = (
    " The run names no version of remixer_tf, so one from before 2026-11-27 wrote it. "
    "Such runs are read from 2026-11-22 on, those of gMLP, aMLP and sMLP from "
    "2026-11-25 on, and those with Muon of mixtures or mixers do not resume. Read "
    "others by the version that wrote them."
)


def written_by(model_dir):
    """Returns the version that wrote a run's configuration, a str.

    None if there is no configuration, "" if it names no version. Those before
    2026-11-26 wrote none.
    """
    import tensorflow as tf  # not for a command's --help

    path = os.path.join(model_dir, "operative_config.gin")
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path, "rb") as file:
        first = file.readline().decode(errors="replace")
    match = re.fullmatch(r"# Written by remixer_tf (\S+)\.\s*", first)
    return match[1] if match else ""


def age_note(model_dir):
    """Says from when on runs are read, if this one may be older; else an empty str."""
    return _BEFORE if written_by(model_dir) == "" else ""


def check_run_version(model_dir):
    """Raises a ValueError if a newer version wrote the run than this one."""
    check_version(written_by(model_dir) or None, model_dir)


def check_version(version, what):
    """Raises a ValueError if `version`, a str or None, is newer than this one.

    Versions have the order of PEP 440: 0.2.0.dev1, 0.2.0rc1, 0.2.0, 0.2.0.post1. The
    name of a build, after a +, does not count.
    """
    if version in (None, __version__):
        return
    from packaging.version import InvalidVersion, Version  # 50 ms

    try:
        written, this = (Version(Version(x).public) for x in (version, __version__))
    except (InvalidVersion, TypeError):
        raise UserError(
            f"{what} says that remixer_tf {version!r:.100} wrote it, which is no "
            f"version, such as {__version__}. Correct it, or train or write it anew."
        ) from None
    if written > this:
        raise UserError(
            f"{what} was written by remixer_tf {version}, and this is {__version__}. "
            f"Install remixer_tf {version} or later to read it."
        )
