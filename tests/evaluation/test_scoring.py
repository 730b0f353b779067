import json

import keras
import numpy as np
import pytest
import seqio
import tensorflow as tf
from keras import ops

from remixer_tf import configuration
from remixer_tf import eval as eval_binary
from remixer_tf.checkpoints import reading
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.decoding import Decoded
from remixer_tf.evaluation import scoring
from tests.data.toy_tasks import VOCABULARY, rows, toy_task, word_metric
from tests.models import tiny

LENGTHS = {"inputs": 8, "targets": 12}


class Shift(keras.Model):
    """Answers with the input's letters moved on by `shift`."""

    def build(self, input_shape=None):
        self.shift = self.add_weight(shape=(), initializer="ones", name="shift")
        self.built = True


def shift_decode(model, batch, max_length):
    tokens = batch["encoder_input_tokens"]
    moved = ops.where(tokens > 1, tokens + ops.cast(model.shift, "int32"), tokens)
    moved = ops.pad(moved, [(0, 0), (0, max_length - tokens.shape[1])])
    return Decoded(moved, ops.cast(tokens[:, 0], "float32"))


def built_shift():
    model = Shift(name="shift_model")
    model.build()
    return model


def run(task, tmp_path=None, **kwargs):
    kwargs = {
        "feature_lengths": LENGTHS,
        "step": 3,
        "batch_size": 4,
        "decode_fn": shift_decode,
        **kwargs,
    }
    return scoring.evaluate_model(
        tmp_path and str(tmp_path), built_shift(), task, **kwargs
    )


DEV = [("abc", "bcd"), ("h", "i"), ("hello", "hello"), ("abab", "bcbc"), ("z", "z")]


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
    (events,) = (tmp_path / "tensorboard" / "eval_toy_dev").iterdir()
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


def test_only_the_first_examples():
    result = run(toy_task({"dev": DEV}), max_examples=2)["toy"]["dev"]
    assert result["examples"] == 2 and result["metrics"]["em"] == 1.0


def test_over_long_inputs_are_trimmed_and_targets_compared_whole():
    # The answer to the trimmed input equals the trimmed target, not the whole one.
    task = toy_task({"dev": [("a" * 13, "b" * 13)]})
    result = run(task, feature_lengths={"inputs": 8, "targets": 8})["toy"]["dev"]
    assert result["over_length"] == 1 and result["metrics"]["em"] == 0.0


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


def test_errors():
    with pytest.raises(ValueError, match=r"no split \['test'\].*It has: dev"):
        run(toy_task({"dev": DEV}), splits=["test"])
    with pytest.raises(ValueError, match="no split beside training"):
        run(toy_task({"train": DEV}))
    with pytest.raises(ValueError, match="toy dev has no examples"):
        run(toy_task({"dev": []}))

    def likelihood(targets, scores):
        return {"mean": np.mean(scores)}

    with pytest.raises(ValueError, match="scores of given targets"):
        run(toy_task({"dev": DEV}, metric_fns=[likelihood]))
    with pytest.raises(ValueError, match="Two metrics of toy are called"):
        run(toy_task({"dev": DEV}, metric_fns=[word_metric, word_metric]))


def test_metrics_may_use_the_scores_of_the_predictions():
    def first_letter(targets, predictions, aux_values):
        return {"first": float(aux_values["scores"][0])}

    result = run(toy_task({"dev": DEV}, metric_fns=[first_letter]))
    assert result["toy"]["dev"]["metrics"] == {"first": 100.0}


def test_a_task_without_metrics_gives_predictions(tmp_path):
    assert (
        run(toy_task({"dev": DEV}, metric_fns=[]), tmp_path)["toy"]["dev"]["metrics"]
        == {}
    )
    assert (tmp_path / "eval" / "toy" / "dev" / "3" / "predictions.jsonl").exists()


def test_evaluate_restores_the_checkpoint_of_the_step(tmp_path):
    for step, shift in ((5, 0.0), (9, 1.0)):
        model = built_shift()
        model.shift.assign(shift)
        tf.train.Checkpoint(model=reading.variables_by_path(model.variables)).write(
            str(tmp_path / "checkpoints" / str(step) / "state")
        )

    def em(**kwargs):
        result = scoring.evaluate(
            str(tmp_path),
            lambda: Shift(name="shift_model"),
            toy_task({"dev": DEV}),
            feature_lengths=LENGTHS,
            decode_fn=shift_decode,
            **kwargs,
        )["toy"]["dev"]
        return result["step"], result["metrics"]["em"]

    assert em() == (9, 0.6)
    assert em(step=5) == (5, 0.4)
    with pytest.raises(FileNotFoundError, match="step 6 .* steps 5, 9"):
        em(step=6)

    with pytest.raises(FileNotFoundError, match="best.json"):
        em(step="best")
    (tmp_path / "best.json").write_text('{"step": 5, "metric": "em", "value": 0.4}')
    assert em(step="best") == (5, 0.4)


def test_each_checkpoint_is_scored_as_it_appears(tmp_path, monkeypatch, capsys):
    model = built_shift()

    def save(step):
        tf.train.Checkpoint(model=reading.variables_by_path(model.variables)).write(
            str(tmp_path / "checkpoints" / str(step) / "state")
        )

    events = iter([lambda: save(2), lambda: save(5), lambda: end.write_text("{}")])
    end = tmp_path / "train_summary.json"
    # What training does while the evaluation waits.
    monkeypatch.setattr(scoring.time, "sleep", lambda seconds: next(events)())
    save(1)
    for _ in range(2):
        scoring.evaluate(
            str(tmp_path),
            lambda: Shift(name="shift_model"),
            toy_task({"dev": DEV}),
            feature_lengths=LENGTHS,
            decode_fn=shift_decode,
            step="each",
        )
        folder = tmp_path / "eval" / "toy" / "dev"
        assert sorted(p.name for p in folder.iterdir()) == ["1", "2", "5"]
        # The second time nothing is decoded.
        monkeypatch.setattr(scoring, "decode_examples", None)


def test_sorting_and_cutting_change_no_prediction(monkeypatch):
    """A model's greedy decoding, against one example at a time at full length."""
    monkeypatch.setattr(tiny, "VOCAB_SIZE", VOCABULARY.vocab_size)
    keras.utils.set_random_seed(0)
    model = tiny.tiny_model("remixer")
    task = toy_task({"dev": rows([(1 + i % 7, 1 + i % 11) for i in range(5)])})
    examples = read_examples(task, "dev", LENGTHS)
    decoded = scoring.decode_examples(
        model, examples, feature_lengths=LENGTHS, batch_size=4, max_length=6
    )
    assert decoded.tokens.shape == (5, 6) and np.count_nonzero(decoded.tokens)
    one = tf.function(lambda batch: scoring.greedy_decode(model, batch, 6))
    for i, example in enumerate(examples):
        inputs = np.zeros([1, 8], np.int32)
        inputs[0, : len(example["inputs"])] = example["inputs"]
        want = one({"encoder_input_tokens": tf.constant(inputs)})
        np.testing.assert_array_equal(decoded.tokens[i], want.tokens[0])
        np.testing.assert_allclose(decoded.scores[i], want.scores[0], rtol=1e-4)


SMALL = [
    "D_MODEL = 8",
    "D_FF = 8",
    "D_KV = 4",
    "NUM_HEADS = 2",
    "NUM_ENCODER_LAYERS = 1",
    "NUM_DECODER_LAYERS = 1",
    "VOCABULARY = @byte_vocabulary()",
    "VOCABULARY_FILE = None",
    "VOCAB_SIZE = 259",
]


def test_the_binary_reads_the_configuration_of_the_run(tmp_path, capsys):
    with pytest.raises(configuration.UserError, match="no .*operative_config.gin"):
        eval_binary.main([f"--model_dir={tmp_path}"])

    configuration.parse_gin(["models/t5_1_1_tiny.gin", "runs/mini_cogs.gin"], SMALL)
    (tmp_path / "operative_config.gin").write_text(configuration.configuration_str())
    model = configuration.call("EncoderDecoder")
    model.build()
    tf.train.Checkpoint(model=reading.variables_by_path(model.variables)).write(
        str(tmp_path / "checkpoints" / "2" / "state")
    )
    eval_binary.main(
        [
            f"--model_dir={tmp_path}",
            "--step=2",
            "--gin.evaluate.splits=['test']",
            "--gin.evaluate.max_examples=3",
            "--gin.evaluate.max_decode_length=4",
        ]
    )
    assert "mini_cogs at step 2" in capsys.readouterr().out
    folder = tmp_path / "eval" / "mini_cogs" / "test" / "2"
    assert json.loads((folder / "metrics.json").read_text())["examples"] == 3
