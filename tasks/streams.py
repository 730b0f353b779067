"""Tasks of rows in large files, in memory that does not grow.

A file is read once, row by row, and its rows are written as `tf.train.Example`s into a
TFRecord file of this package's own. Training reads that: fast, by TensorFlow's threads
alone, and from any position that a checkpoint holds. The file is kept for later
processes, and written again when its source has changed.

The files are in the folder `tables` of REMIXER_TF_CACHE, by default
~/.cache/remixer_tf. If they take more than 32 GiB, those that were not used for the
longest time go, but for the files of the process that writes. If that variable is
empty, they are in a temporary folder of the process.

A process reads them by links of its own, so another one may remove them.
"""

import atexit
import contextlib
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
from remixer_tf.errors import StorageError, UserError, shorten
from remixer_tf.programs import cache_folder, lock, newest_first, remove_abandoned

_IN_TURN = 16  # files that are read in turn, as by seqio
_PARALLEL_CALLS = 32
_LARGE = 2**28  # bytes
_SHOWN = 2**24  # bytes of a file that takes some seconds
_MOST_BYTES = 2**35  # of all files
_READER, _END = "reader-", ".tfrecord"


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
        if not any(map(os.path.getsize, own[index::hosts])):
            raise UserError(f"{split} has no rows: {shorten(files[index::hosts])}.")
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
        folder = _folder()
        target = os.path.join(folder, f"{place}-{_digest(before)}{_END}")
        link = os.path.join(_links(folder), os.path.basename(target))
        if found := _linked(target, link):
            return found
        if before[1] and before[1] > _SHOWN:
            logging.warning(
                "%s is read once, and its rows are kept in %s", path, target
            )
        for old in tf.io.gfile.glob(os.path.join(folder, f"{place}-*{_END}")):
            _remove(old)
        with whole_file(target) as written:
            with tf.io.TFRecordWriter(written) as file:
                for row in self._read(split, path):
                    file.write(self._example(row).SerializeToString())
            if file_state(path) != before:
                raise UserError(
                    f"{path} has changed while it was read. Write it first, then start."
                )
        found = _linked(target, link)
        _remove_oldest(folder)
        return found

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


def _linked(target, link):
    """Returns a name that this process reads a file by; None if it is missing."""
    if os.path.exists(link):
        return link
    try:
        os.utime(target)
        os.link(target, link)
    except FileNotFoundError:
        return None
    except OSError:  # a file system without links
        return target
    return link


@functools.cache
def _links(folder):
    """Makes a folder for this process' links to the files of a folder."""
    remove_abandoned(folder, _READER)
    place, owner = tempfile.mkdtemp(prefix=_READER, dir=folder), os.getpid()
    with contextlib.suppress(OSError):  # a file system without locks
        lock(place)

    @atexit.register
    def leave():
        if os.getpid() == owner:
            shutil.rmtree(place, ignore_errors=True)

    return place


def _remove_oldest(folder):
    """Removes the files that were used the longest ago while there are too many."""
    own = {*os.listdir(_links(folder))}
    kept = [path for path in newest_first(folder) if path.endswith(_END)]
    left = sum(map(_size, kept)) - _MOST_BYTES
    for path in reversed(kept):
        if left > 0 and os.path.basename(path) not in own:
            left -= _size(path)
            _remove(path)


def _size(path):
    with contextlib.suppress(FileNotFoundError):  # Another process removes it too.
        return os.path.getsize(path)
    return 0


def _remove(path):
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)


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
