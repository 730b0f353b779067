"""Decoding splits, the files of their results, and what a task's metrics may be."""

import json
import types

import keras
import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf.data.codec import Codec
from remixer_tf.data.eval_batches import padded_lengths, read_examples
from remixer_tf.decoding import greedy_decode
from remixer_tf.errors import UserError
from remixer_tf.evaluation.calls import call_on_examples
from remixer_tf.evaluation.task_metrics import _flatten, list_predictions
from remixer_tf.tasks.text_metrics import Percent
from tests.data.toy_tasks import VOCABULARY, rows, toy_task, word_metric
from tests.evaluation.shift import DEV, LENGTHS, decoded, shift_engine
from tests.models.tiny import tiny_model


def run(task, tmp_path, **kwargs):
    return decoded(task, **kwargs).run(str(tmp_path), shift_engine(), 3)


def test_metrics_and_files(tmp_path, capsys):
    task = toy_task({"train": DEV, "dev": DEV, "gen": rows([(2, 2)] * 6)})
    results = run(task, tmp_path)

    assert results["toy"].keys() == {"dev", "gen"}
    dev = results["toy"]["dev"]
    assert dev["metrics"] == {"em": 0.6, "type/short": 1.0}
    assert dev["examples"] == 5 and dev["over_length"] == 0
    assert dev["decoded_tokens"] == sum(len(x) + 1 for x, _ in DEV)

    folder = tmp_path / "eval" / "toy" / "dev" / "3"
    assert json.loads((folder / "metrics.json").read_text()) == dev
    lines = (folder / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {
            "input": text,
            "target": target,
            "prediction": "".join(chr(ord(letter) + 1) for letter in text),
            "exact_match": target != text,
            "type": "long" if text == "hello" else "short",
        }
        for text, target in DEV
    ]
    (events,) = (tmp_path / "tensorboard" / "train" / "eval/toy/dev").iterdir()
    scalars = {
        (value.tag, event.step): float(tf.make_ndarray(value.tensor))
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
        if "examples" not in value.tag
    }
    assert scalars == {
        ("eval/em", 3): pytest.approx(0.6),
        ("eval/type/short", 3): 1.0,
    }
    table = capsys.readouterr().out
    assert "toy at step 3" in table and "type/short" in table and "0.60" in table


def test_predictions_are_there_when_a_metric_fails(tmp_path):
    def broken(targets, predictions):
        raise RuntimeError("no corpus")

    with pytest.raises(RuntimeError, match="no corpus"):
        run(toy_task({"dev": DEV}, metric_fns=[broken]), tmp_path)
    (path,) = (tmp_path / "eval" / "toy" / "dev" / "3").iterdir()
    assert path.name == "predictions.jsonl"
    assert len(path.read_text().splitlines()) == len(DEV)


def test_only_the_first_examples(tmp_path):
    result = run(toy_task({"dev": DEV}), tmp_path, max_examples=2)["toy"]["dev"]
    assert result["examples"] == 2 and result["metrics"]["em"] == 1.0


def test_over_long_inputs_are_trimmed_and_targets_compared_whole(tmp_path):
    # The answer to the trimmed input equals the trimmed target, not the whole one.
    task = toy_task({"dev": [("a" * 13, "b" * 13)]})
    result = run(task, tmp_path, feature_lengths={"inputs": 8, "targets": 8})["toy"][
        "dev"
    ]
    assert result["over_length"] == 1 and result["metrics"]["em"] == 0.0


@pytest.mark.slow
def test_every_task_of_a_mixture(tmp_path):
    one = toy_task({"dev": DEV}, name="toy_one")
    two = toy_task({"dev": DEV[:2], "gen": DEV[:1]}, name="toy_two")
    mixture = seqio.Mixture("toy_both", [(one, 1), (two, 1)])
    results = run(mixture, tmp_path)
    assert {name: list(splits) for name, splits in results.items()} == {
        "toy_one": ["dev"],
        "toy_two": ["dev", "gen"],
    }
    assert results["toy_two"]["dev"]["metrics"]["em"] == 1.0


@pytest.mark.slow
def test_errors(tmp_path):
    with pytest.raises(ValueError, match="no split 'test'.*It has: dev"):
        run(toy_task({"dev": DEV}), tmp_path, splits=["test"])
    with pytest.raises(ValueError, match="no split beside training"):
        run(toy_task({"train": DEV}), tmp_path)
    with pytest.raises(ValueError, match="toy dev has no examples"):
        run(toy_task({"dev": []}), tmp_path)

    def likelihood(targets, scores):
        return {"mean": np.mean(scores)}

    with pytest.raises(ValueError, match="scores of given targets"):
        run(toy_task({"dev": DEV}, metric_fns=[likelihood]), tmp_path)
    with pytest.raises(ValueError, match="Two metrics of toy are called"):
        run(toy_task({"dev": DEV}, metric_fns=[word_metric, word_metric]), tmp_path)

    def none(targets, predictions):
        return None

    with pytest.raises(UserError, match="of toy must return a dict.*Received: None"):
        run(toy_task({"dev": DEV}, metric_fns=[none]), tmp_path)


VALUES = {
    "a": {"b": 1, 2: True, "c": {"d": np.float32(0.5)}},
    "text": "x", "half": np.array(0.5), "percent": Percent(50), "big": 2**70,
}  # fmt: skip
NO_NUMBERS = {
    "none": None, "list": [1, 2], "ragged": [[1], [1, 2]], "complex": 1j,
    "huge": 10**400, "object": object(), "one": np.ones(1), "bytes": b"x",
}  # fmt: skip


def test_what_a_users_metric_may_give(caplog):
    flat = dict(_flatten({**VALUES, **NO_NUMBERS}))
    assert flat == {
        "a/b": 1.0, "a/2": 1.0, "a/c/d": 0.5, "text": "x", "half": 0.5,
        "percent": 50, "big": 2.0**70,
    }  # fmt: skip
    assert flat["percent"].unit == "%"
    left = [record.getMessage().split()[1] for record in caplog.records]
    assert left == [*NO_NUMBERS]


def test_metrics_may_use_the_scores_of_the_predictions(tmp_path):
    def first_letter(targets, predictions, aux_values):
        return {"first": float(aux_values["scores"][0])}

    result = run(toy_task({"dev": DEV}, metric_fns=[first_letter]), tmp_path)
    assert result["toy"]["dev"]["metrics"] == {"first": 100.0}


def test_a_task_without_metrics_gives_predictions(tmp_path):
    assert (
        run(toy_task({"dev": DEV}, metric_fns=[]), tmp_path)["toy"]["dev"]["metrics"]
        == {}
    )
    assert (tmp_path / "eval" / "toy" / "dev" / "3" / "predictions.jsonl").exists()


def test_what_numbers_an_example_may_be_nested():
    idx = {
        "paragraph": np.int64(3),
        "name": b"caf\xc3\xa9",
        "of": {"x": np.bool_(True)},
    }
    example = {"targets": np.array([5]), "idx": idx, "vector": np.ones(2)}
    tokens = types.SimpleNamespace(tokens=[np.array([5])])
    (record,) = list_predictions(toy_task({"dev": DEV}), [example], tokens)
    found = json.loads(json.dumps(record))["idx"]
    assert found == {"paragraph": 3, "name": "café", "of": {"x": True}}


@pytest.mark.slow
def test_sorting_and_cutting_change_no_prediction():
    """A model's greedy decoding, against one example at a time at full length."""
    keras.utils.set_random_seed(0)
    model = tiny_model("remixer", vocab_size=VOCABULARY.vocab_size)
    task = toy_task({"dev": rows([(1 + i % 7, 1 + i % 11) for i in range(5)])})
    examples = read_examples(task, "dev", LENGTHS)
    decode = tf.function(lambda batch: greedy_decode(model, batch, 6))
    answers = call_on_examples(
        lambda batch: tf.nest.map_structure(lambda x: x.numpy(), decode(batch)),
        examples,
        Codec(task, LENGTHS),
        length_buckets=padded_lengths(model, LENGTHS),
        batch_size=4,
        description="decoding",
    )
    assert answers.tokens.shape == (5, 6) and np.count_nonzero(answers.tokens)
    for i, example in enumerate(examples):
        inputs = np.zeros([1, 8], np.int32)
        inputs[0, : len(example["inputs"])] = example["inputs"]
        want = decode({"encoder_input_tokens": tf.constant(inputs)})
        np.testing.assert_array_equal(answers.tokens[i], want.tokens[0])
        np.testing.assert_allclose(answers.scores[i], want.scores[0], rtol=1e-4)
