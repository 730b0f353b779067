"""Tasks of rows in memory, and the features of text."""

import functools
import re

import seqio
import tensorflow as tf

from remixer_tf.arguments import Factory, Texts, checked
from remixer_tf.data.vocabularies import (
    PublishedVocabulary,
    SentencePieceVocabulary,
    byte_vocabulary,
)
from remixer_tf.errors import UserError, check_integers
from remixer_tf.tasks import text_metrics

_GRAPH_CODE = (
    seqio.ByteVocabulary,
    seqio.PassThroughVocabulary,
    seqio.SentencePieceVocabulary,
    SentencePieceVocabulary,
    PublishedVocabulary,
)


def tokenize(dataset, output_features):
    """`seqio.preprocessors.tokenize`, without AutoGraph for seqio's vocabularies.

    They hold no Python `if` over tensors. AutoGraph would read their code and seqio's
    for 0.4 s. Other vocabularies may need it.
    """
    function = seqio.preprocessors.tokenize
    vocabularies = [feature.vocabulary for feature in output_features.values()]
    if all(type(vocabulary) in _GRAPH_CODE for vocabulary in vocabularies):
        function = tf.autograph.experimental.do_not_convert(function)
    return function(dataset, output_features)


def append_eos(dataset, output_features):
    """`seqio.preprocessors.append_eos`, with 32 calls at once.

    Its own few take nearly twice the time: threads wake each other for every example.
    """
    append = functools.partial(
        seqio.preprocessors.append_eos_after_trim_impl, output_features=output_features
    )
    append = tf.autograph.experimental.do_not_convert(append)
    return dataset.map(append, num_parallel_calls=32)


# From texts to tokens that end in EOS. Such a task can be cached.
TOKENIZE = (tokenize, seqio.CacheDatasetPlaceholder(), append_eos)
# Where texts are cut before that, so that they keep EOS.
TOKENIZE_KEEPING_EOS = (*TOKENIZE[:-1], seqio.preprocessors.append_eos_after_trim)


def byte_features(names=("inputs", "targets"), extra_ids=0, add_eos=True):
    """Returns features of text in bytes, which `Run.vocabulary` replaces."""
    feature = seqio.Feature(byte_vocabulary(extra_ids), add_eos=add_eos)
    return dict.fromkeys(names, feature)


def check_task(name, shuffle_buffer_size=None):
    """Raises a UserError unless seqio takes the name and the size of a task."""
    if not isinstance(name, str) or not re.fullmatch(r"[\w.:#]+", name):
        raise UserError(
            "name must be a str of letters, digits and _ . : # that names the task. "
            f"Received: name={name!r:.200}"
        )
    if shuffle_buffer_size is not None:
        check_integers(shuffle_buffer_size=shuffle_buffer_size)


def add_task(name, read_rows, splits, kind_of_type):
    """Registers a seqio task whose examples are inputs, targets and a type.

    Examples also have the texts (`inputs_pretokenized`, `targets_pretokenized`). The
    metric is `exact_match_by_type(kind_of_type)`. For the other arguments see
    `RowSource`.
    """
    check_task(name)
    seqio.TaskRegistry.add(
        name,
        source=RowSource(read_rows, splits),
        preprocessors=TOKENIZE,
        output_features=byte_features(),
        postprocess_fn=text_metrics.postprocess,
        metric_fns=[text_metrics.exact_match_by_type(kind_of_type)],
        shuffle_buffer_size=32_768,  # more training examples than any of them has
    )


class RowSource(seqio.FunctionDataSource):
    """Rows in memory. The task's buffer shuffles them, not the source.

    `read_rows` is a function of a split's name, called when the split is read. It
    returns all rows: tuples of str, or of values that make tensors of equal shapes.
    `names` are those of a row's parts. `settings` is a dictionary of what the rows
    depend on, for caches to compare; None for what `read_rows` holds.
    """

    @checked
    def __init__(
        self,
        read_rows: Factory,
        splits: Texts,
        names: Texts = ("inputs", "targets", "type"),
        settings=None,
    ):
        def dataset_fn(split, shuffle_files=False, seed=None):
            rows = read_rows(split)
            if not rows:
                tasks = map(seqio.TaskRegistry.get, seqio.TaskRegistry.names())
                named = ", ".join(task.name for task in tasks if task.source is self)
                raise UserError(f"{named or 'The split'} {split} has no rows.")
            columns = map(list, zip(*rows, strict=True))
            columns = dict(zip(names, columns, strict=True))
            return tf.data.Dataset.from_tensor_slices(columns)

        super().__init__(dataset_fn, splits)
        self.read_rows = read_rows
        self.settings = settings

    def get_dataset(self, split="train", shuffle=True, seed=None, **kwargs):
        # seqio's own method would warn that a single file shuffles too little.
        return super().get_dataset(split, shuffle=False, seed=seed, **kwargs)

    def num_input_examples(self, split):
        """Returns the number of rows of a split."""
        return len(self.read_rows(split))
