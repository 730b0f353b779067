"""A task over bytes, made in memory, for the tests of data and evaluation."""

import dataclasses

import seqio
import tensorflow as tf

from remixer_tf.data import eval_batches, pipeline
from remixer_tf.data.codec import Codec
from remixer_tf.data.lengths import LongExamples
from remixer_tf.data.pipeline import Batching

VOCABULARY = seqio.ByteVocabulary()  # "a" is 100; EOS 1


def word_metric(targets, predictions):
    right = [t == p for t, p in zip(targets, predictions, strict=True)]
    return {"em": sum(right) / len(right), "type": {"short": 1.0}}


def toy_task(splits, name="toy", last=seqio.preprocessors.append_eos, **kwargs):
    """A task whose splits are lists of (inputs, targets)."""

    def dataset_fn(split, shuffle_files):
        inputs, targets = (
            zip(*splits[split], strict=True) if splits[split] else ("", "")
        )
        return tf.data.Dataset.from_tensor_slices(
            {
                "inputs": tf.constant(list(inputs), tf.string),
                "targets": tf.constant(list(targets), tf.string),
                "type": tf.constant(
                    ["long" if len(x) > 4 else "short" for x in inputs] or [], tf.string
                ),
            }
        )

    return seqio.Task(
        name,
        source=seqio.FunctionDataSource(dataset_fn, splits=list(splits)),
        preprocessors=[seqio.preprocessors.tokenize, last],
        output_features={
            "inputs": seqio.Feature(VOCABULARY),
            "targets": seqio.Feature(VOCABULARY),
        },
        metric_fns=kwargs.pop("metric_fns", [word_metric]),
        **kwargs,
    )


def train_dataset(task, *, feature_lengths, **options):
    """`pipeline.train_dataset`, with what is a `Batching`'s or a `LongExamples`'."""
    parts = []
    for part in (Batching, LongExamples):
        names = [field.name for field in dataclasses.fields(part)]
        given = {name: options.pop(name) for name in names if name in options}
        parts.append(part(**given))
    return pipeline.train_dataset(task, feature_lengths, *parts, **options)


def eval_dataset(
    task,
    *,
    feature_lengths,
    batch_size,
    split="validation",
    feature_converter=seqio.EncDecFeatureConverter,
):
    """Batches of a split: every example once, in order."""
    task = pipeline.get_task(task)
    return eval_batches.batch_examples(
        eval_batches.read_examples(task, split, feature_lengths),
        Codec(task, feature_lengths, feature_converter),
        batch_size=batch_size,
    )


def rows(lengths):
    """(inputs, targets) of the given lengths, EOS not counted; all different."""
    return [
        ("".join(chr(97 + (i + j) % 26) for j in range(n)), chr(97 + i % 26) * m)
        for i, (n, m) in enumerate(lengths)
    ]
