"""Tasks of rows that are read block by block, in memory that does not grow.

An iterator's position is the number of a block in each file that is open, and of a row
in it. A checkpoint holds it, and reading goes on there: files are skipped to the block
and not parsed. So a source is read in the order of its files' rows, and the task's
buffer shuffles.
"""

import collections
import itertools
import threading

import numpy as np
import seqio
import tensorflow as tf

from remixer_tf.arguments import Factory, PositiveInt, Texts, checked
from remixer_tf.data.file_states import file_state
from remixer_tf.errors import UserError

_IN_TURN = 16  # files that are read in turn, as by seqio
_MOST_OPEN = 64
_MOST_BLOCKS = 2**40

_LARGE = 2**28  # bytes


def is_streamed(streamed, files):
    """Whether files are read block by block: what a task says, or if they are large.

    Args:
        streamed: bool; None for files of more than 256 MiB together.
        files: a function that returns their paths.
    """
    if streamed is not None:
        return streamed
    found = filter(tf.io.gfile.exists, files())
    return sum(tf.io.gfile.stat(path).length for path in found) > _LARGE


class StreamedRows(seqio.DataSource):
    """The rows of files, read block by block.

    Several files are read in turn, 16 rows of each. A host of several reads files of
    its own, so there must be as many.

    Args:
        shards: a function of a split's name. It returns the paths of the files.
        read: a function of a split's name, a path, and the number of records to skip.
            It returns an iterable of records. A record is a list of rows, tuples.
        splits: names.
        names: those of a row's parts.
        dtypes: TensorFlow's types of these.
        settings: dictionary of what the rows depend on, for caches to compare.
        block: int, records that are read at once.
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
        block: PositiveInt = 1024,
    ):
        super().__init__(splits)
        self._shards, self._read = shards, read
        self._names = tuple(names)
        self._dtypes = dtypes or [tf.string] * len(names)
        self.settings = settings
        self._open = _Readers(read, block)

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
        if shard_info and len(files) < shard_info.num_shards:
            raise UserError(
                f"{split} has {len(files)} files, and {shard_info.num_shards} hosts "
                "read at least one each. Write more files, or cache the task: "
                "remixer_tf cache."
            )
        numbers = tf.data.Dataset.range(len(files))
        if shard_info:
            numbers = numbers.shard(shard_info.num_shards, shard_info.index)
        if shuffle:
            numbers = numbers.shuffle(len(files), seed=seed)

        def rows_of(number):
            blocks = tf.data.Dataset.range(_MOST_BLOCKS).map(
                lambda block: self._block(split, files, number, block)
            )
            blocks = blocks.take_while(lambda _, ended: tf.logical_not(ended))
            return blocks.flat_map(
                lambda rows, _: tf.data.Dataset.from_tensor_slices(rows)
            )

        return numbers.interleave(rows_of, cycle_length=_IN_TURN, block_length=_IN_TURN)

    def _block(self, split, files, number, block):
        """Returns the rows of a block, a dictionary, and whether there is none."""

        def read(number, block):
            rows = self._open.block(split, files[number], int(block))
            columns = zip(*rows, strict=True) if rows else [()] * len(self._names)
            types = [dtype.as_numpy_dtype for dtype in self._dtypes]
            arrays = [np.array([*x], t) for x, t in zip(columns, types, strict=True)]
            return [*arrays, rows is None]

        *columns, ended = tf.numpy_function(
            read, [number, block], [*self._dtypes, tf.bool], stateful=False
        )
        for column in columns:
            column.set_shape([None])
        ended.set_shape([])
        return dict(zip(self._names, columns, strict=True)), ended


class _Readers:
    """Iterators of records, each kept where the next block begins.

    A block elsewhere opens the file anew. So blocks have no state, and are still read
    one after the other.
    """

    def __init__(self, read, size):
        self._read, self._size = read, size
        self._kept = collections.OrderedDict()
        self._lock = threading.Lock()

    def block(self, split, path, number):
        """Returns the rows of a block, a list; None after the last."""
        with self._lock:
            kept = self._kept.pop((split, path, number), None)
        if kept is None:
            kept = file_state(path), iter(self._read(split, path, number * self._size))
        state, records = kept
        block = list(itertools.islice(records, self._size))
        if file_state(path) != state:
            raise UserError(
                f"{path} has changed while it was read. Write it first, then start."
            )
        if not block:
            return None
        with self._lock:
            self._kept[split, path, number + 1] = kept
            while len(self._kept) > _MOST_OPEN:
                self._kept.popitem(last=False)
        return [row for record in block for row in record]
