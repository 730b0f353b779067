"""Code of a user's keeps AutoGraph; without it seqio's gives the same."""

import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf.data import pipeline
from remixer_tf.data.pipeline import Batching, train_dataset
from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.tasks import rows
from remixer_tf.tasks.rows import TOKENIZE, RowSource

LENGTHS = {"inputs": 16, "targets": 16}


@seqio.map_over_dataset
def repeat_short(example):
    """Python's `if` and `while` over tensors, which AutoGraph converts."""
    text = example["inputs"]
    if tf.strings.length(text) < 3:
        while tf.strings.length(text) < 6:
            text = text + text
    return {**example, "inputs": text}


class OwnVocabulary(seqio.ByteVocabulary):
    def _encode_tf(self, s):
        ids = super()._encode_tf(s)
        if tf.size(ids) > 2:
            ids = ids[:2]
        return ids


class OwnConverter(seqio.EncDecFeatureConverter):
    def _convert_example(self, features):
        features = super()._convert_example(features)
        tokens = features["encoder_input_tokens"]
        if tokens[0] > 0:
            tokens = -tokens
        return {**features, "encoder_input_tokens": tokens}


TWO_ROWS = RowSource(lambda split: [("ab", "", ""), ("cdef", "", "")], ["train"])


def task_of(preprocessors=(), vocabulary=None, source=TWO_ROWS, names=LENGTHS):
    feature = seqio.Feature(vocabulary or byte_vocabulary(), add_eos=True)
    return seqio.Task(
        "own",
        source=source,
        preprocessors=[
            *preprocessors,
            *TOKENIZE,
        ],
        output_features=dict.fromkeys(names, feature),
    )


def first_inputs(task, converter=seqio.EncDecFeatureConverter):
    batching = Batching(batch_size=2, feature_converter=converter, shuffle=False)
    (batch,) = train_dataset(task, LENGTHS, batching).take(1).as_numpy_iterator()
    return batch["encoder_input_tokens"][0]


def bytes_of(*texts):
    """ByT5's ids: 3 plus the byte, then 1 for EOS."""
    rows = [[3 + byte for byte in text.encode()] + [1] for text in texts]
    return [row + [0] * (16 - len(row)) for row in rows]


@pytest.mark.slow
def test_own_preprocessors_are_converted():
    expected = bytes_of("abababab", "cdef")
    np.testing.assert_array_equal(first_inputs(task_of([repeat_short])), expected)
    partial = functools.partial(repeat_short)
    np.testing.assert_array_equal(first_inputs(task_of([partial])), expected)


def test_own_sources_are_converted():
    def rows(split, shuffle_files=False):
        return repeat_short(TWO_ROWS.get_dataset("train"))

    task = task_of(source=seqio.FunctionDataSource(rows, ["train"]))
    np.testing.assert_array_equal(first_inputs(task), bytes_of("abababab", "cdef"))


def test_own_vocabularies_are_converted():
    inputs = first_inputs(task_of(vocabulary=OwnVocabulary()))
    np.testing.assert_array_equal(inputs, bytes_of("ab", "cd"))


@pytest.mark.slow
def test_own_converters_are_converted():
    inputs = first_inputs(task_of(), OwnConverter)
    np.testing.assert_array_equal(inputs, -np.array(bytes_of("ab", "cdef")))


@functools.wraps(seqio.preprocessors.append_eos)
def like_append_eos(dataset, output_features):
    return repeat_short(dataset)


@pytest.mark.slow
def test_functions_that_look_like_seqios_are_converted():
    inputs = first_inputs(task_of([like_append_eos]))
    np.testing.assert_array_equal(inputs, bytes_of("abababab", "cdef"))


@pytest.mark.slow
def test_rows_that_tf_data_reads_are_converted():
    def read_rows(split):
        data = TWO_ROWS.get_dataset("train")
        texts = [row["inputs"] for row in repeat_short(data).as_numpy_iterator()]
        return [(text, "", "") for text in texts]

    task = task_of(source=RowSource(read_rows, ["train"]))
    np.testing.assert_array_equal(first_inputs(task), bytes_of("abababab", "cdef"))


@pytest.mark.slower
@pytest.mark.parametrize(
    "converter, pack",
    [
        (seqio.EncDecFeatureConverter, True),
        *(
            pytest.param(converter, pack, marks=pytest.mark.slow)
            for converter, pack in [
                (seqio.EncDecFeatureConverter, False),
                (seqio.LMFeatureConverter, True),
                (seqio.PrefixLMFeatureConverter, True),
                (seqio.PrefixLMFeatureConverter, False),
            ]
        ),
    ],
)
def test_batches_are_the_same_with_it(monkeypatch, converter, pack):
    texts = [(text, text[::-1], "word") for text in ("ab", "cdef", "g" * 9)]
    lengths = {name: LENGTHS[name] for name in converter.TASK_FEATURES}
    source = RowSource(lambda split: texts, ["train"])
    task = task_of(source=source, names=lengths)

    def batches():
        batching = Batching(batch_size=4, pack=pack, feature_converter=converter)
        data = train_dataset(task, lengths, batching)
        return list(data.take(3).as_numpy_iterator())

    without = batches()
    monkeypatch.setattr(pipeline, "_GRAPH_CODE", ())
    monkeypatch.setattr(rows, "_GRAPH_CODE", ())
    for expected, batch in zip(batches(), without, strict=True):
        assert expected.keys() == batch.keys()
        for name, value in expected.items():
            np.testing.assert_array_equal(batch[name], value)
