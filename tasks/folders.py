"""The folders of data files that users name, and how a file is read."""

import functools
import gzip
import io
import os
import zlib

import gin
import tensorflow as tf
from absl import logging

from remixer_tf.checkpoints.paths import locate
from remixer_tf.errors import MissingFileError, UserError


class DataFolder:
    """Where the files of a task are: the first of these that names a folder.

    1. `<name>.directory` in gin, else what `set` was given;
    2. the environment variable `variable`;
    3. the folder `subfolder` of the folder REMIXER_TF_DATA, if it exists.

    Each may start with `~`.

    Args:
        name: str, the name in gin, such as "cogs".
        subfolder: str; None skips the third place.
        variable: str; by default such as "REMIXER_TF_COGS_DIR".
    """

    def __init__(self, name, subfolder=None, variable=None):
        self.option = f"{name}.directory"
        self.variable = variable or f"REMIXER_TF_{name.upper()}_DIR"
        self._subfolder = subfolder
        self._directory = None

        def of_gin(directory=None):
            return directory

        with gin.unlock_config():  # A configuration may be in use already.
            self._of_gin = gin.external_configurable(of_gin, name, module=__name__)

    def set(self, directory=None):
        """Names the folder; None goes back to the environment."""
        self._directory = directory

    def find(self):
        """Returns (folder, who named it), or (None, None) if nobody named one.

        Raises:
            FileNotFoundError: the folder does not exist.
        """
        named, data = map(os.environ.get, (self.variable, "REMIXER_TF_DATA"))
        directory = self._of_gin() or self._directory
        if directory or named:
            source = self.option if directory else self.variable
            return _existing(directory or named, source), source
        if data and self._subfolder:
            folder = os.path.join(_existing(data, "REMIXER_TF_DATA"), self._subfolder)
            if tf.io.gfile.isdir(folder):
                return folder, "REMIXER_TF_DATA"
        return None, None

    def require(self, what):
        """Returns what `find` does; `what` names the files for the error.

        Raises:
            FileNotFoundError: nobody named a folder, or it does not exist.
        """
        folder, source = self.find()
        if folder is None:
            raise MissingFileError(
                f"No folder with {what} is named. Name it with "
                f"--gin.{self.option}=\"'FOLDER'\" or in {self.variable}."
            )
        return folder, source

    def find_file(self, *names):
        """Returns the path of the first of these files that the folder has.

        Args:
            names: names of files; each may be compressed, with .gz. The first is the
                set's own name. Reading a file of another name logs a warning.

        Raises:
            FileNotFoundError: nobody named a folder, or it has none of the files.
        """
        files = [name + end for name in names for end in ("", ".gz")]
        own = os.path.basename(names[0])
        folder, source = self.require(" or ".join(files))
        for file in files:
            path = os.path.join(folder, file)
            if tf.io.gfile.exists(path):
                if os.path.basename(file).removesuffix(".gz") != own:
                    warn_once(
                        f"{path} is read, not the set's own {own}: scores may not "
                        "compare with published ones."
                    )
                return path
        raise MissingFileError(
            f"There is no {' or '.join(files)} in {folder!r}, which {source} names. It "
            f"holds: {', '.join(sorted(tf.io.gfile.listdir(folder))) or 'nothing'}."
        )


warn_once = functools.cache(logging.warning)


def _existing(folder, source):
    folder = locate(str(folder))
    if not tf.io.gfile.isdir(folder):
        raise MissingFileError(
            f"{source} names a folder of data files, but there is no folder "
            f"{folder!r}. Correct it or unset it."
        )
    return folder


# Limits for a decompressed file: times its size, and bytes. Gzip makes text 3 to 10
# times smaller.
_LARGER, _AT_LEAST = 100, 2**26


def read_bytes(path):
    """Returns a file's content, decompressed if its name ends in .gz.

    Raises:
        ValueError: gzip cannot read the file, or its content is over 64 MiB and more
            than 100 times as large.
    """
    with tf.io.gfile.GFile(path, "rb") as file:
        data = file.read()
    if path.endswith(".gz"):
        most = max(_LARGER * len(data), _AT_LEAST)
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
                data = file.read(most + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path} cannot be decompressed: {error}.") from error
        if len(data) > most:
            raise UserError(
                f"{path} becomes more than {_LARGER} times as large when it is "
                "decompressed. Decompress it yourself if that is meant."
            )
    return data
