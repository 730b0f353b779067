"""A split read once, in its order, and batched for evaluation."""

import functools

import numpy as np
import seqio
import tensorflow as tf

from remixer_tf.arguments import NonNegativeInt, Text, checked
from remixer_tf.data.failures import reading
from remixer_tf.data.kinds import Task
from remixer_tf.data.language_model import LanguageModelFeatureConverter
from remixer_tf.data.lengths import LengthBuckets, check_feature_lengths, whole_lengths
from remixer_tf.data.pipeline import NO_EXAMPLES, check_split, with_seed
from remixer_tf.data.texts import decode_text, features_of_text
from remixer_tf.errors import UserError, check_integers
from remixer_tf.models import DecoderOnly
from remixer_tf.objectives.batches import depends_on_padding

_SHORTEST = 16  # tokens that inputs are padded to: each length is traced and compiled


@checked
def read_examples(
    task: Task,
    split: Text,
    feature_lengths,
    max_examples: NonNegativeInt | None = None,
    trim: bool = True,
):
    """Reads a split of a `seqio.Task` once, in its order, for evaluation.

    Inputs are trimmed as in training, unless `trim` is false or the task makes its
    examples for `feature_lengths`, as span corruption. Targets are whole, since metrics
    compare predictions with them; a `Codec` trims them for the model. `max_examples`
    are only the first; None for all.

    Returns a list, not empty, of dictionaries of NumPy arrays, with every feature. A
    text that is not UTF-8 is a ValueError, see `decode_text`.
    """
    check_feature_lengths(feature_lengths)
    check_split(task, split)
    lengths = {k: n for k, n in feature_lengths.items() if k != "targets"}
    with reading(task, split):
        dataset = with_seed(task).get_dataset(
            whole_lengths(task, feature_lengths) or (lengths if trim else None),
            split=split,
            shuffle=False,
            trim_output_features=trim,
            seed=0,  # random preprocessing is the same at every step
            try_in_mem_cache=False,
        )
        examples = list(dataset.take(max_examples or -1).as_numpy_iterator())
    if not examples:
        raise UserError(NO_EXAMPLES.format(task.name, split))
    names = [f"{name}_pretokenized" for name in features_of_text(task)]
    for number, example in enumerate(examples, 1):
        for text in map(example.get, names):
            if isinstance(text, bytes):
                decode_text(text, task, split, f"example {number}")
    return examples


def converter_for(model):
    """Returns the converter class for an encoder-decoder or a language model.

    A language model reads inputs and targets in one row.
    """
    if isinstance(model, DecoderOnly):
        return LanguageModelFeatureConverter
    return seqio.EncDecFeatureConverter


def writes_in_float32(model):
    """Whether a model writes answers, and computes them in float32.

    Sums in another order then give the same answers. In bfloat16 they may change the
    likeliest token.
    """
    return hasattr(model, "decode_step") and model.compute_dtype == "float32"


def xla_of_answers(model, xla=None):
    """Returns `xla` of `Engine.compile` for a function that writes answers.

    It is the given bool. None stands for the default: XLA adds in another order, so it
    compiles such functions of float32 models alone.
    """
    return "answers" if xla is None and writes_in_float32(model) else xla


def padded_lengths(model, feature_lengths):
    """Returns lengths that rows may be padded to with the same answers, least first.

    They are quarters of `feature_lengths`, from 16 tokens on, if the model masks its
    padding. Targets are not read, so their length stays. In bfloat16 a sum over fewer
    zeros may round differently: what writes in it reads whole `feature_lengths`.
    """
    writes = hasattr(model, "decode_step")
    if depends_on_padding(model) or writes and not writes_in_float32(model):
        return [dict(feature_lengths)]
    lengths = []
    for quarter in (1, 2, 3, 4):
        shorter = {
            name: n
            if name == "targets"
            else min(n, max(_SHORTEST, -(-n * quarter // 4)))
            for name, n in feature_lengths.items()
        }
        if shorter not in lengths:
            lengths.append(shorter)
    return lengths


def batch_examples(examples, codec, *, batch_size, length_buckets=None):
    """Batches examples in memory, each once, as a `tf.data.Dataset`.

    It has dictionaries of int32 `[batch_size, length]`, and `example_index`
    `[batch_size]`: the index in `examples`, -1 in rows that fill up the last batch.
    These are copies with loss weights 0.

    Args:
        examples: list from `read_examples`.
        codec: their `Codec`, which trims features as in training.
        batch_size: int.
        length_buckets: None, or as in `Batching`. The examples are then sorted by
            length, and each batch is cut to the first bucket that holds it.
    """
    lengths = dict(codec.lengths)
    buckets = LengthBuckets(length_buckets, lengths, codec.converter(pack=False))
    order = list(range(len(examples)))
    if length_buckets:
        prompts = codec.one_row and "inputs" in lengths
        key = functools.partial(
            _bucket_and_lengths,
            buckets=buckets.buckets,
            first="inputs" if prompts else "targets",
        )
        order.sort(key=lambda i: key(examples[i]))
    check_integers(batch_size=batch_size)
    fill = -len(order) % batch_size
    rows = [examples[i] for i in order + order[-1:] * fill]
    dataset = tf.data.Dataset.zip(
        codec.converted(rows, pack=False),
        tf.data.Dataset.from_tensor_slices(np.array(order + [-1] * fill, np.int32)),
    ).batch(batch_size, drop_remainder=True)

    def finish(batch, index):
        real = tf.cast(index >= 0, tf.int32)[:, None]
        batch = {
            name: x * tf.cast(real, x.dtype) if name.endswith("_weights") else x
            for name, x in batch.items()
        }
        if length_buckets:
            batch = buckets.cut(batch, buckets.index(batch))
        return {**batch, "example_index": index}

    return dataset.map(finish).prefetch(2)


def _bucket_and_lengths(example, buckets, first):
    """Key that sorts examples for decoding, within a bucket by the feature `first`."""
    # Rows whose targets are equally long end together. Prompts of a language model
    # matter more: one call reads what all rows have, and steps read the rest.
    full = buckets[-1]
    lengths = {name: min(len(example[name]), full[name]) for name in full}
    bucket = next(
        i for i, b in enumerate(buckets) if all(lengths[name] <= b[name] for name in b)
    )
    return bucket, lengths[first], *lengths.values()
