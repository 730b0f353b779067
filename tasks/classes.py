"""Registers tasks whose targets are the class of a text, or of a pair of texts."""

from typing import Annotated

import seqio

from remixer_tf.arguments import Functions, Texts, checked, instance
from remixer_tf.data.classification import ClassNames, join_texts
from remixer_tf.data.spans import span_windows
from remixer_tf.tasks.rows import RowSource, byte_features, check_task
from remixer_tf.tasks.text_metrics import accuracy


def add_task(name, read_rows, splits, classes, pairs=True, shuffle_buffer_size=32_768):
    """Registers a classification task for an `EncoderOnly`.

    Read it with `ClassifierFeatureConverter`, and score with `decode_fn=classify`. The
    metric is accuracy, in percent. Examples keep the texts (`*_pretokenized`).

    Args:
        name: str, of the task.
        read_rows: function of a split's name, called when the split is read. It returns
            all rows: (inputs, inputs_b, class), or (inputs, class).
        splits: names of the splits.
        classes: list of str, the classes in the order of their ids.
        pairs: bool, whether rows hold two texts.
        shuffle_buffer_size: int; as large as the training split, it shuffles fully.
    """
    texts = ("inputs", "inputs_b") if pairs else ("inputs",)
    source = RowSource(read_rows, splits, names=(*texts, "targets"))
    add_source(name, source, classes, shuffle_buffer_size=shuffle_buffer_size)


@checked
def encoder_task(classes: Texts = (), spans: bool = False):
    """Makes a task without examples: how an encoder reads texts, one or two.

    The `seqio.Task` is not in seqio's registry. `Run.vocabulary` replaces bytes.

    Args:
        classes: list of str, the classes of a classifier in the order of their ids;
            empty for an encoder that has none.
        spans: bool, whether answers are spans of the second text, see `span_windows`.
    """
    features = text_features(classes)
    preprocessors = [seqio.preprocessors.tokenize, join_texts]
    if spans:
        numbers = seqio.Feature(seqio.PassThroughVocabulary(None), add_eos=False)
        features |= dict.fromkeys(("answerable", "targets"), numbers)
        preprocessors = [span_windows]
    elif not classes:
        del features["targets"]
    return seqio.Task(
        "encoder",
        source=RowSource(lambda _: [], ("validation",), names=("inputs", "inputs_b")),
        preprocessors=preprocessors,
        output_features=features,
    )


def text_features(classes):
    """The features of a task of classes."""
    features = byte_features(("inputs", "inputs_b"), extra_ids=3, add_eos=False)
    text = features["inputs"].vocabulary
    return features | {
        "inputs_b": seqio.Feature(text, add_eos=False, required=False),
        "token_types": seqio.Feature(seqio.PassThroughVocabulary(2), add_eos=False),
        "targets": seqio.Feature(ClassNames(classes), add_eos=False),
    }


@checked
def add_source(
    name,
    source: Annotated[seqio.DataSource, instance(seqio.DataSource)],
    classes: Texts,
    preprocessors: Functions = (),
    shuffle_buffer_size=32_768,
):
    """Registers a classification task of any `seqio.DataSource`, see `add_task`.

    From the source's examples `preprocessors` make dictionaries of strings: "inputs",
    perhaps "inputs_b", and "targets", a class.
    """
    check_task(name, shuffle_buffer_size)
    seqio.TaskRegistry.add(
        name,
        source=source,
        preprocessors=[
            *preprocessors,
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
            join_texts,
        ],
        output_features=text_features(classes),
        metric_fns=[accuracy],
        shuffle_buffer_size=shuffle_buffer_size,
    )
