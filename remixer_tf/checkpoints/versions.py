"""Which version of remixer_tf wrote a run, a cache or an export."""

import os
import re

from remixer_tf import __version__
from remixer_tf.errors import UserError

HEADER = f"# Written by remixer_tf {__version__}."  # a configuration's first line


def written_by(model_dir):
    """Returns the version that wrote a run's configuration, a str, or None.

    Versions before 2026-11-26 wrote none.
    """
    import tensorflow as tf  # not for a command's --help

    path = os.path.join(model_dir, "operative_config.gin")
    if not tf.io.gfile.exists(path):
        return None
    with tf.io.gfile.GFile(path, "rb") as file:
        first = file.readline().decode(errors="replace")
    match = re.fullmatch(r"# Written by remixer_tf (\S+)\.\s*", first)
    return match and match[1]


def check_run_version(model_dir):
    """Raises a ValueError if a newer version wrote the run than this one."""
    check_version(written_by(model_dir), model_dir)


def check_version(version, what):
    """Raises a ValueError if `version`, a str or None, is newer than this one."""
    if version and _numbers(version) > _numbers(__version__):
        raise UserError(
            f"{what} was written by remixer_tf {version}, and this is {__version__}. "
            f"Install remixer_tf {version} or later to read it."
        )


def _numbers(version):
    return [int(number) for number in re.findall(r"\d+", str(version))]
