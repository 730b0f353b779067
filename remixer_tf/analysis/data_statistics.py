"""Statistics of a task's examples: lengths, unknown pieces, padding.

Lengths of a feature are an int array `[n]`, those of a task a dictionary of them.
"""

import numpy as np
import seqio
import tensorflow as tf

from remixer_tf.data.lengths import LengthBuckets
from remixer_tf.data.pipeline import with_seed
from remixer_tf.objectives.batches import throughput_tensors

PERCENTILES = (50, 90, 95, 99, 100)
_MULTIPLE = 8  # of suggested lengths
_BUCKET_PERCENTILES = (50, 75, 90)
_MOST_BINS = 16


def percentile(values, percent):
    """Returns the smallest of `values` that `percent` % do not exceed, an int."""
    return int(np.percentile(values, percent, method="inverted_cdf"))


def histogram(values):
    """Counts ints of at least 0 in at most 16 bins, as wide as a power of two.

    Returns a list of (first, last, count) from the least value's bin to the greatest's;
    first and last belong to the bin.
    """
    values = np.asarray(values)
    width = 1
    while values.max() // width - values.min() // width >= _MOST_BINS:
        width *= 2
    first = int(values.min()) // width
    counts = np.bincount(values // width - first)
    return [
        ((first + i) * width, (first + i + 1) * width - 1, int(count))
        for i, count in enumerate(counts)
    ]


def suggest_length(lengths, percent=99):
    """A percentile of the lengths, rounded up to a multiple of 8."""
    return -(-percentile(lengths, percent) // _MULTIPLE) * _MULTIPLE


def suggest_buckets(lengths, feature_lengths):
    """Returns length buckets at the 50th, 75th and 90th percentile of every feature.

    None exceeds or equals `feature_lengths`, and no two are equal.
    """
    buckets = []
    for percent in _BUCKET_PERCENTILES:
        bucket = {
            name: min(suggest_length(lengths[name], percent), length)
            for name, length in feature_lengths.items()
        }
        if bucket not in [*buckets, feature_lengths]:
            buckets.append(bucket)
    return buckets


def share_over(lengths, feature_lengths):
    """Returns the share of examples with a feature longer than `feature_lengths`."""
    over = [lengths[name] > length for name, length in feature_lengths.items()]
    return float(np.mean(np.any(over, axis=0)))


def unknown(sequences, vocabulary):
    """Returns the shares of unknown ids, and of arrays of ids that have one."""
    found = [np.count_nonzero(ids == vocabulary.unk_id) for ids in sequences]
    ids = sum(len(ids) for ids in sequences)
    return sum(found) / max(ids, 1), float(np.mean(np.array(found) > 0))


def share_of_padding(examples, codec, pack=False, length_buckets=None):
    """Returns the share of positions that are padding, and the number of rows.

    `examples` is a list of dictionaries of int arrays `[n]`, `codec` their `Codec`; for
    the others see `Batching`.
    """
    converter = codec.converter(pack=pack)
    buckets = LengthBuckets(length_buckets, dict(codec.lengths), converter)

    def count(row):
        if length_buckets:
            row = buckets.cut(row, buckets.index(row))
        tensors = throughput_tensors(row)
        used = sum(tf.math.count_nonzero(x, dtype=tf.int64) for x in tensors)
        return used, sum(tf.size(x, tf.int64) for x in tensors)

    dataset = codec.converted(examples, pack=pack).map(count)
    counts = np.array(list(dataset.as_numpy_iterator()))
    used, positions = counts.sum(axis=0)
    return 1 - used / positions, len(counts)


def split_size(task, split, limit):
    """Counts the examples of a split in a task's source, before preprocessors.

    If the source does not know, no more than `limit` are read. Returns a str: "24,155",
    "10,000 or more", or why it cannot be read.
    """
    try:
        size = task.source.num_input_examples(split)
        if size is not None:
            return f"{size:,}"
        dataset = with_seed(task).source.get_dataset(split=split, shuffle=False)
        size = int(dataset.take(limit + 1).reduce(0, lambda n, _: n + 1))
    except (OSError, ValueError, KeyError) as error:  # as the source raises
        return f"cannot be read: {error}"
    return f"{size:,}" if size <= limit else f"{limit:,} or more"


def pieces(ids, vocabulary):
    """Returns the piece of each id: '▁cat', 'a', '<0xE2>', '</s>'; '-' below 0."""
    return ["-" if i < 0 else _piece(int(i), vocabulary) for i in ids]


def _piece(i, vocabulary):
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        return vocabulary.tokenizer.IdToPiece(i)
    if not isinstance(vocabulary, seqio.ByteVocabulary):
        return vocabulary.decode([i])
    special = ("<pad>", "</s>", "<unk>")
    if i < len(special):
        return special[i]
    byte = i - len(special)
    if byte >= 256:
        return f"<extra_id_{vocabulary.vocab_size - 1 - i}>"
    shown = chr(byte).isascii() and chr(byte).isprintable()
    return chr(byte) if shown else f"<0x{byte:02X}>"
