"""The folders of data files that users name, TensorFlow Datasets (TFDS), and files."""

import contextlib
import contextvars
import functools
import os

import gin
import requests
import seqio
import tensorflow as tf
from absl import logging

from remixer_tf.checkpoints.paths import Located, locate
from remixer_tf.data.failures import how_to_fetch
from remixer_tf.errors import MissingFileError, UserError, shorten
from remixer_tf.tasks.opening import check_no_pipe, open_bytes

_named = contextvars.ContextVar("named", default=None)


@contextlib.contextmanager
def data_folders(folders):
    """Names folders in a block, in this thread: {"cogs.directory": path, ...}."""
    token = _named.set(folders)
    try:
        yield
    finally:
        _named.reset(token)


class DataFolder:
    """Where the files of a task are: the first of these that names a folder.

    1. `<name>.directory` in gin, or in `data_folders`; else what `set` was given;
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

        def of_gin(directory: Located = None):
            return directory

        with gin.unlock_config():  # A configuration may be in use already.
            self._of_gin = gin.external_configurable(of_gin, name, module=__name__)

    def set(self, directory=None):
        """Names the folder; None goes back to the environment."""
        self._directory = directory

    def find(self):
        """Returns (folder, who named it), or (None, None) if nobody named one."""
        variable, data = map(os.environ.get, (self.variable, "REMIXER_TF_DATA"))
        named = (_named.get() or {}).get(self.option)
        directory = named or self._of_gin() or self._directory
        if directory or variable:
            source = self.option if directory else self.variable
            return _existing(directory or variable, source), source
        if data and self._subfolder:
            folder = os.path.join(_existing(data, "REMIXER_TF_DATA"), self._subfolder)
            if tf.io.gfile.isdir(folder):
                return folder, "REMIXER_TF_DATA"
        return None, None

    def require(self, what):
        """Returns what `find` does; `what` names the files if nobody named a folder."""
        folder, source = self.find()
        if folder is None:
            raise MissingFileError(
                f"No folder with {what} is named. Name it with "
                f"--gin.{self.option}=\"'FOLDER'\" or in {self.variable}."
            )
        return folder, source

    def find_file(self, *names):
        """Returns the path of the first of these files that the folder has.

        Each may be compressed, with .gz. The first is the set's own name: reading a
        file of another name logs a warning.
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
            f"holds: {shorten(sorted(tf.io.gfile.listdir(folder))) or 'nothing'}."
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


def files_of(pattern):
    """Returns the files of a pattern, sorted; a file of this very name is the one.

    Raises an OSError if one is a pipe or a device.
    """
    files = [pattern]
    if not tf.io.gfile.exists(pattern):
        files = sorted(tf.io.gfile.glob(pattern))
    for path in files:
        check_no_pipe(path)
    return files


class FilesOrTfds(seqio.TfdsDataSource):
    """A source of the files of a folder if one is named, else of TFDS.

    Args:
        dataset: str, the set's name in TFDS, with its version.
        folder, files: a `DataFolder`, and a `seqio.DataSource` of its files.
        splits: names of the splits; None for those of the files.
    """

    def __init__(self, dataset, folder, files, splits=None):
        super().__init__(dataset, splits=splits)
        self._folder = folder
        self._files = files

    @property
    def splits(self):
        """All splits of the set; files of some may be missing."""
        return tuple(self._splits or self._files.splits)

    def with_labels(self):
        """The same source without its test splits, whose examples have no labels."""
        splits = [name for name in self.splits if not name.startswith("test")]
        name = self.tfds_dataset.name
        return FilesOrTfds(name, self._folder, self._files, splits)

    def get_dataset(self, split="train", shuffle=True, seed=None, **kwargs):
        """Returns the split's raw examples, a `tf.data.Dataset`."""
        if self._reads_tfds():
            return super().get_dataset(split, shuffle, seed, **kwargs)
        if split not in self.splits:
            raise UserError(
                f"{self._folder.option} names files, of which whole splits are read: "
                f"{', '.join(self.splits)}. Received: {split!r}. max_examples takes "
                "the first of a split."
            )
        return self._files.get_dataset(split, shuffle=False, seed=seed)

    def num_input_examples(self, split):
        """Returns the number of raw examples, an int."""
        if self._reads_tfds():
            return super().num_input_examples(split)
        return int(self.get_dataset(split).cardinality())

    def list_shards(self, split):
        """Returns the names of the parts of a split; files have one."""
        return super().list_shards(split) if self._reads_tfds() else [split]

    def _reads_tfds(self):
        """Whether no folder is named. Then TFDS must have the set, or a network."""
        if self._folder.find()[0] is not None:
            return False
        builder = self.tfds_dataset.builder
        if builder.info.splits:
            return True
        try:  # TFDS itself would try for minutes.
            requests.head(next(iter(builder.url_infos)), timeout=10)
        except requests.RequestException as error:
            name = self.tfds_dataset.name
            raise MissingFileError(
                f"There is no {name} in {builder.data_dir}, and it cannot be "
                "downloaded. Name the folder of the set's own files with "
                f"--gin.{self._folder.option}=\"'FOLDER'\" or in "
                f"{self._folder.variable}. Or fetch it: {how_to_fetch(name)}"
            ) from error
        return True


def read_bytes(path):
    """Returns a file's content, decompressed if its name ends in .gz or .zst.

    Errors are those of `open_bytes`.
    """
    with open_bytes(path) as file:
        return file.read()
