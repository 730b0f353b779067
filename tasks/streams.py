"""Tasks of rows in large files, in memory that does not grow.

A file is read once, row by row, and its rows are written as `tf.train.Example`s into a
TFRecord file of this package's own. Training reads that: fast, by TensorFlow's threads
alone, and from any position that a checkpoint holds. The file is kept for later
processes, and written again when its source has changed.

The files are in the folder `tables` of REMIXER_TF_CACHE, by default
~/.cache/remixer_tf. If that variable is empty, they are in a temporary folder of the
process.
"""

import atexit
import functools
import hashlib
import json
import os
import shutil
import tempfile

import seqio
import tensorflow as tf
from absl import logging

from remixer_tf import __version__
from remixer_tf.arguments import Factory, Texts, checked
from remixer_tf.checkpoints.whole_folder import whole_file
from remixer_tf.data.file_states import file_state
from remixer_tf.data.numbered_files import records
from remixer_tf.errors import StorageError, UserError
from remixer_tf.programs import cache_folder

_IN_TURN = 16  # files that are read in turn, as by seqio
_PARALLEL_CALLS = 32
_LARGE = 2**28  # bytes
_SHOWN = 2**24  # bytes of a file that takes some seconds


def is_streamed(streamed, files):
    """Whether files are not held in memory: what a task says, or if they are large.

    Args:
        streamed: bool; None for files of more than 256 MiB together.
        files: a function that returns their paths.
    """
    if streamed is not None:
        return streamed
    found = filter(tf.io.gfile.exists, files())
    return sum(tf.io.gfile.stat(path).length for path in found) > _LARGE


class StreamedRows(seqio.DataSource):
    """The rows of files, which are not held in memory.

    Several files are read in turn, 16 rows of each. A host of several reads files of
    its own, so there must be as many.

    Args:
        shards: a function of a split's name. It returns the paths of the files.
        read: a function of a split's name and a path. It yields rows, tuples.
        splits: names.
        names: those of a row's parts.
        dtypes: TensorFlow's types of these, string or int64; None for strings.
        settings: dictionary of what the rows depend on, for JSON.
    """

    @checked
    def __init__(
        self,
        shards: Factory,
        read: Factory,
        splits: Texts,
        names: Texts,
        dtypes=None,
        settings=None,
    ):
        super().__init__(splits)
        self._shards, self._read = shards, read
        self._description = {
            name: tf.io.FixedLenFeature([], dtype)
            for name, dtype in zip(
                names, dtypes or [tf.string] * len(names), strict=True
            )
        }
        self.settings = settings

    @property
    def supports_arbitrary_sharding(self):
        return False

    def list_shards(self, split):
        """Returns the paths of a split's files."""
        return self._shards(split)

    def get_dataset(
        self, split="train", shuffle=True, seed=None, shard_info=None, **unused
    ):
        files = self.list_shards(split)
        index, hosts = (
            (shard_info.index, shard_info.num_shards) if shard_info else (0, 1)
        )
        if len(files) < hosts:
            raise UserError(
                f"{split} has {len(files)} files, and {hosts} hosts read at least one "
                "each. Write more files, or cache the task: remixer_tf cache."
            )
        own = [""] * len(files)
        own[index::hosts] = [self._converted(split, x) for x in files[index::hosts]]
        numbers = tf.data.Dataset.range(len(files)).shard(hosts, index)
        if shuffle:
            numbers = numbers.shuffle(len(files), seed=seed)
        paths = tf.constant(own)
        rows = numbers.interleave(
            lambda number: records(paths[number]),
            cycle_length=_IN_TURN,
            block_length=_IN_TURN,
            num_parallel_calls=tf.data.AUTOTUNE,
        )

        @tf.autograph.experimental.do_not_convert
        def parse(record):
            return tf.io.parse_single_example(record, self._description)

        return rows.map(parse, num_parallel_calls=_PARALLEL_CALLS)

    def _converted(self, split, path):
        """Returns the path of a file's rows as TFRecord, and writes it if missing."""
        before = file_state(path)
        place = _digest([__version__, split, before[0], self.settings])
        target = os.path.join(_folder(), f"{place}-{_digest(before)}.tfrecord")
        if os.path.exists(target):
            return target
        if before[1] and before[1] > _SHOWN:
            logging.warning(
                "%s is read once, and its rows are kept in %s", path, target
            )
        for old in tf.io.gfile.glob(os.path.join(_folder(), f"{place}-*")):
            tf.io.gfile.remove(old)
        with whole_file(target) as written:
            with tf.io.TFRecordWriter(written) as file:
                for row in self._read(split, path):
                    file.write(self._example(row).SerializeToString())
            if file_state(path) != before:
                raise UserError(
                    f"{path} has changed while it was read. Write it first, then start."
                )
        return target

    def _example(self, row):
        example = tf.train.Example()
        for value, (name, kind) in zip(row, self._description.items(), strict=True):
            feature = example.features.feature[name]
            if kind.dtype == tf.string:
                feature.bytes_list.value.append(value.encode())
            else:
                feature.int64_list.value.append(value)
        return example


def _digest(value):
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@functools.cache
def _folder():
    """The folder of the rows of files; a temporary one without REMIXER_TF_CACHE."""
    folder = cache_folder()
    if folder is None:
        folder = tempfile.mkdtemp(prefix="remixer_tf-tables-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder
    folder = os.path.join(folder, "tables")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"cannot write {folder}: {error.strerror}. REMIXER_TF_CACHE names a folder "
            "of yours, where rows of large tables are kept."
        ) from None
    return folder
