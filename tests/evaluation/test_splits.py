"""Splits that are scored: those that exist, and without being asked the labelled."""

import json
import re

import numpy as np
import pytest
import seqio
import t5.data
import tensorflow as tf
import tensorflow_datasets as tfds

from remixer_tf.evaluation.loss import LossEvaluation
from remixer_tf.evaluation.splits import have_labels
from tests.data.toy_tasks import toy_task
from tests.evaluation.shift import DEV, LENGTHS, decoded, shift_engine

UNLABELLED = [(text, "<unk>") for text, _ in DEV]


@pytest.mark.parametrize("split", ["devv", "dev[:2]", "dev+train"])
@pytest.mark.parametrize("make", [decoded, LossEvaluation])
def test_unknown_splits_are_refused_at_start(make, split):
    with pytest.raises(ValueError, match=re.escape(f"'{split}'")) as error:
        make(
            toy_task({"dev": DEV, "train": DEV}),
            feature_lengths=LENGTHS,
            splits=["train", split],
        )
    assert ("Nearest: dev." in str(error.value)) == (split == "devv")
    assert ("max_examples" in str(error.value)) == ("[" in split)


@pytest.mark.parametrize("splits", ["dev", 5, [5]])
def test_splits_that_are_no_list(splits):
    with pytest.raises(ValueError, match=r"splits must be a list of names.*Received"):
        decoded(toy_task({"dev": DEV}), splits=splits)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A prepared dataset of TensorFlow Datasets, of ten texts: its folder."""
    data_dir = tmp_path_factory.mktemp("tfds")
    home = data_dir / "letters" / "1.0.0"
    home.mkdir(parents=True)
    text = tfds.features.Text()
    features = tfds.features.FeaturesDict({"inputs": text, "targets": text})
    examples = [{"inputs": letter, "targets": letter} for letter in "abcdefghij"]
    rows = [features.serialize_example(example) for example in examples]
    path = home / "letters-dev.tfrecord-00000-of-00001"
    with tf.io.TFRecordWriter(str(path)) as file:
        for row in rows:
            file.write(row)
    split = tfds.core.SplitInfo(
        name="dev",
        shard_lengths=[len(rows)],
        num_bytes=sum(map(len, rows)),
        filename_template=tfds.core.ShardedFileTemplate(
            data_dir=home,
            dataset_name="letters",
            split="dev",
            filetype_suffix="tfrecord",
        ),
    )
    tfds.folder_dataset.write_metadata(
        data_dir=home, features=features, split_infos=[split], version="1.0.0"
    )
    return str(data_dir)


@pytest.mark.slower
def test_slices_of_tensorflow_datasets(prepared, tmp_path):
    def task(**kwargs):
        source = seqio.TfdsDataSource("letters:1.0.0", tfds_data_dir=prepared, **kwargs)
        return toy_task({}).replace(source=source)

    results = decoded(task(), splits=["dev[:2]", "dev[50%:]", "dev"]).run(
        str(tmp_path), shift_engine(0.0), 3
    )
    examples = {split: result["examples"] for split, result in results["toy"].items()}
    assert examples == {"dev[:2]": 2, "dev[50%:]": 5, "dev": 10}
    for split in ("dev[:x]", "dev[:2]+dev", "train[:2]"):
        with pytest.raises(ValueError, match="toy .*dev"):
            decoded(task(), splits=[split])
    with pytest.raises(ValueError, match=r"cannot read the slice 'dev\[:2\]'"):
        decoded(task(splits=["dev"]), splits=["dev[:2]"])


def test_only_splits_with_labels_are_scored_without_being_asked(tmp_path):
    task = toy_task({"dev": DEV, "test": UNLABELLED})
    results = decoded(task).run(str(tmp_path), shift_engine(), 3)
    assert list(results["toy"]) == ["dev"]
    assert decoded(task, splits=["dev", "test"]).parts() == [
        ("toy", "dev"),
        ("toy", "test"),
    ]
    loss = LossEvaluation(task, feature_lengths=LENGTHS)
    assert loss.parts() == [("toy", "dev")]


def test_predictions_of_a_test_set_that_was_asked_for(tmp_path, caplog):
    task = toy_task({"dev": DEV, "test": UNLABELLED})
    evaluation = decoded(task, splits=["test"])
    result = evaluation.run(str(tmp_path), shift_engine(), 3)["toy"]["test"]
    assert result["metrics"] == {} and result["examples"] == len(DEV)
    path = tmp_path / "eval" / "toy" / "test" / "3" / "predictions.jsonl"
    predictions = [json.loads(line) for line in path.read_text().splitlines()]
    assert predictions[0]["prediction"] == "bcd"
    assert "toy test has no labels: nothing to score" in caplog.text

    loss = LossEvaluation(task, feature_lengths=LENGTHS, splits=["test"])
    with pytest.raises(ValueError, match="test of toy have no labels"):
        loss.check(str(tmp_path))


@pytest.mark.slow
def test_what_t5_writes_where_there_is_no_label():
    """Its own preprocessors, on the label -1 that TensorFlow Datasets gives."""
    idx = {"passage": 0, "query": 0, "paragraph": 0, "question": 0, "answer": 0}
    pair = {"premise": "a", "hypothesis": "b", "idx": 0}
    wsc = {
        "text": "A cat saw it .",
        "span1_text": "cat",
        "span1_index": 1,
        "span2_text": "it",
        "span2_index": 3,
        "idx": 0,
    }
    record = {"query": "q", "entities": ["a"], "passage": "p", "idx": idx}
    stsb = {"sentence1": "a", "sentence2": "b", "idx": 0}
    preprocessors = t5.data.preprocessors

    def glue(dataset):
        return preprocessors.glue(
            dataset, benchmark_name="cb", label_names=["no", "yes"]
        )

    def simple(dataset):
        return preprocessors.wsc_simple(dataset)

    no_answer = tf.constant([], tf.string)
    for preprocess, example, with_label, without in (
        (glue, pair, {"label": 1}, {"label": -1}),
        (preprocessors.wsc, wsc, {"label": 1}, {"label": -1}),
        (simple, wsc, {"label": 1}, {"label": -1}),
        (preprocessors.stsb, stsb, {"label": 1.5}, {"label": -1.0}),
        (preprocessors.record, record, {"answers": ["a"]}, {"answers": no_answer}),
    ):
        for given, labelled in ((with_label, True), (without, False)):
            dataset = preprocess(tf.data.Dataset.from_tensors({**example, **given}))
            examples = [
                {**x, "targets_pretokenized": x["targets"]}
                for x in dataset.as_numpy_iterator()
            ]
            assert examples and have_labels(examples) == labelled, preprocess


@pytest.mark.parametrize("targets", [[-1], [0], [3, 1]])
def test_numbers_as_targets(targets):

    assert have_labels([{"targets": np.array(targets)}]) == (targets != [-1])
