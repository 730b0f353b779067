"""Files by number, so that the position in them does not name their folder."""

import seqio
import tensorflow as tf

_BUFFER = 1 << 18  # bytes, as those of tf.data


def numbered_files(source, read=None):
    """Returns a source of files that reads the same examples, in the same order.

    The iterator of seqio's source holds the paths of the files that it reads, and can
    be restored only where they are. This one's holds their numbers. A source that reads
    files in a way of its own is returned as it is.

    Args:
        source: a `seqio.DataSource`.
        read: a function from a path, a tensor, to a dataset of examples; None for the
            source's own. A `TFRecordDataset` or `TextLineDataset` of `tf.data` in it
            would hold the path.
    """
    own = getattr(type(source), "get_dataset", None)
    if own is not seqio.FileDataSource.get_dataset:
        return source
    return _NumberedFiles(source, read or _reader(source))


def records(path):
    """As `tf.data.TFRecordDataset` of one file, whose iterator holds no path."""
    return _of_file(tf.raw_ops.TFRecordDataset, path)


def _of_file(operation, path):
    variant = operation(filenames=path, compression_type="", buffer_size=_BUFFER)
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def _reader(source):
    """Returns a function that reads a file as the source does; see `numbered_files`."""
    if isinstance(source, seqio.TextLineDataSource):
        lines, first = tf.raw_ops.TextLineDataset, source._skip_header_lines
        return lambda path: _of_file(lines, path).skip(first)
    if (
        isinstance(source, seqio.TFExampleDataSource)
        and source.reader_cls is tf.data.TFRecordDataset
    ):
        return lambda path: records(path).map(source.parse_fn, tf.data.AUTOTUNE)
    return source._reader


class _NumberedFiles(seqio.FileDataSource):
    def __init__(self, source, read):
        vars(self).update(vars(source))
        self._source, self._reader = source, read

    def list_shards(self, split):
        return self._source.list_shards(split)

    def get_dataset(
        self, split="train", shuffle=True, seed=None, shard_info=None, **unused
    ):
        files = self.list_shards(split)
        if not files or (shard_info and len(files) < shard_info.num_shards):
            return self._source.get_dataset(split, shuffle, seed, shard_info)  # Raises.
        numbers = tf.data.Dataset.range(len(files))
        if shard_info:
            numbers = numbers.shard(shard_info.num_shards, shard_info.index)
        if shuffle:
            size = self._file_shuffle_buffer_size or len(files)
            numbers = numbers.shuffle(size, seed=seed)
        paths = tf.constant(files)
        return numbers.interleave(
            lambda number: self._reader(paths[number]),
            cycle_length=self._cycle_length,
            block_length=self._block_length,
            num_parallel_calls=tf.data.AUTOTUNE,
        )
