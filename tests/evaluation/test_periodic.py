"""Evaluation while training, the best step and early stopping."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from remixer_tf.checkpoints.reading import available_steps, restore_model
from remixer_tf.decoding import Decoded
from remixer_tf.evaluation.periodic import Best, DecodedEvaluation, LossEvaluation
from remixer_tf.evaluation.results import read_results, write_result
from remixer_tf.training.loop import train
from tests.data.toy_tasks import rows, toy_task
from tests.training import toy

LENGTHS = {"inputs": 8, "targets": 6}


def result(step, value, split="dev"):
    return {"task": "t", "split": split, "step": step, "metrics": {"m": value}}


@pytest.mark.parametrize(
    ("mode", "values", "expected"),
    [
        ("max", {}, (None, None, False)),
        ("max", {10: 1.0, 20: 3.0, 30: 2.0}, (20, 3.0, False)),
        ("max", {10: 1.0, 20: 3.0, 30: 2.0, 40: 3.0}, (20, 3.0, True)),
        ("min", {10: 1.0, 20: 3.0, 100: 2.0}, (10, 1.0, True)),
        ("min", {10: 1.0, 20: 0.5}, (20, 0.5, False)),
    ],
)
def test_best(tmp_path, mode, values, expected):
    for step, value in values.items():
        write_result(str(tmp_path), "metrics", result(step, value))
        write_result(str(tmp_path), "loss", result(step, -value, "test"))
    assert Best("t/dev/m", mode, patience=2).find(str(tmp_path)) == expected


def test_a_metric_that_nothing_gives(tmp_path):
    write_result(str(tmp_path), "metrics", result(1, 1.0))
    with pytest.raises(ValueError, match="'t/dev/n'.*They give: t/dev/m"):
        Best("t/dev/n").find(str(tmp_path))
    with pytest.raises(ValueError, match="'most'"):
        Best("t/dev/n", mode="most")


class Constant(keras.Model):
    """The same logits at every position."""

    def build(self, input_shape=None):
        self.row = self.add_weight(
            shape=(259,),
            initializer=keras.initializers.RandomNormal(seed=3),
            name="row",
        )
        self.built = True

    def call(self, batch, training=False):
        shape = (*batch["decoder_input_tokens"].shape, 259)
        return ops.broadcast_to(self.row, shape)


def test_loss_of_every_split_and_example(tmp_path):
    dev = rows([(3, 2), (4, 5), (1, 1)])
    task = toy_task({"train": dev, "dev": dev, "test": rows([(2, 2)] * 5)})
    model = Constant()
    model.build()
    evaluation = LossEvaluation(task, period=1, feature_lengths=LENGTHS, batch_size=2)
    evaluation.run(str(tmp_path), model, 7)
    results = {r["split"]: r for r in read_results(str(tmp_path), "loss")}
    assert results.keys() == {"dev", "test"}
    logits = model.row.numpy().astype("float64")
    log_probs = logits - np.log(np.exp(logits).sum())
    ids = [i for _, target in dev for i in [*(ord(c) + 3 for c in target), 1]]
    assert results["dev"]["target_tokens"] == len(ids) == 11
    loss = -np.mean(log_probs[ids])
    metrics = results["dev"]["metrics"]
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(np.exp(loss), rel=1e-5)
    assert metrics["accuracy"] == np.mean(np.array(ids) == logits.argmax())
    evaluation.run(str(tmp_path), model, 8)
    assert len(read_results(str(tmp_path), "loss")) == 4


def test_decoded_metrics_and_examples_in_tensorboard(tmp_path, capsys):
    def copy(model, batch, max_length):
        tokens = ops.pad(batch["encoder_input_tokens"], [(0, 0), (0, max_length)])
        tokens = tokens[:, :max_length]
        return Decoded(tokens, ops.zeros(tokens.shape[:1]))

    task = toy_task({"dev": [("ab", "ab"), ("c", "d|e"), ("f", "g")]})
    evaluation = DecodedEvaluation(
        task, period=1, feature_lengths=LENGTHS, max_examples=2, decode_fn=copy
    )
    evaluation.run(str(tmp_path), Constant(), 7)
    (result,) = read_results(str(tmp_path))
    assert (result["metrics"]["em"], result["examples"]) == (0.5, 2)
    texts = []
    for path in (tmp_path / "tensorboard" / "eval_toy_dev").iterdir():
        for record in tf.data.TFRecordDataset(str(path)):
            for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value:
                if "examples" in value.tag:
                    texts.append(tf.make_ndarray(value.tensor).item().decode())
    (text,) = texts
    assert "| ab | ab | ab |" in text and "| c | d&#124;e | c |" in text


class Planned(DecodedEvaluation):
    """An evaluation whose values are known beforehand."""

    def __init__(self, values):
        task = toy_task({"dev": rows([(1, 1)])})
        super().__init__(task, period=2, feature_lengths=LENGTHS)
        self.values = values
        self.steps = []

    def parts(self):
        return [("toy", "dev")]

    def run(self, model_dir, model, step):
        self.steps.append(step)
        write_result(
            model_dir,
            self.kind,
            {"task": "toy", "split": "dev", "step": step,
             "metrics": {"em": self.values[step]}},
        )  # fmt: skip


def run(model_dir, train_steps, evaluation, patience):
    return train(
        str(model_dir),
        toy.ToyModel,
        lambda: keras.optimizers.Adam(0.01),
        toy.toy_dataset,
        train_steps=train_steps,
        checkpoint_period=100,
        keep_checkpoints=1,
        evaluations=[evaluation],
        best=Best("toy/dev/em", patience=patience),
    )


def test_stops_early_and_keeps_the_best_checkpoint(tmp_path, capsys):
    values = {2: 1.0, 4: 5.0, 6: 3.0, 8: 4.0, 9: 6.0, 10: 0.0}
    evaluation = Planned(values)
    summary = run(tmp_path, 100, evaluation, patience=2)
    assert summary["steps"] == 8 and evaluation.steps == [2, 4, 6, 8]
    assert available_steps(tmp_path / "checkpoints") == [4, 8]
    best = json.loads((tmp_path / "best.json").read_text())
    assert best == {"metric": "toy/dev/em", "step": 4, "value": 5.0}
    model = toy.ToyModel()
    model.build()
    assert restore_model(str(tmp_path), model, "best") == 4
    assert "stopped early at step 8" in capsys.readouterr().out

    assert run(tmp_path, 100, evaluation, patience=2) is None
    assert "nothing to do" in capsys.readouterr().out
    assert evaluation.steps == [2, 4, 6, 8]
    summary = run(tmp_path, 9, evaluation, patience=3)  # the last step counts too
    assert summary["steps"] == 9 and evaluation.steps == [2, 4, 6, 8, 9]
    assert json.loads((tmp_path / "best.json").read_text())["step"] == 9


def test_a_run_killed_before_its_evaluation_does_it_when_it_goes_on(tmp_path):
    class Killed(Planned):
        def run(self, model_dir, model, step):
            raise KeyboardInterrupt

    values = {2: 1.0, 4: 2.0}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, 4, Killed(values), patience=None)
    evaluation = Planned(values)
    run(tmp_path, 4, evaluation, patience=None)
    assert evaluation.steps == [2, 4]


def test_results_of_an_earlier_run_are_not_taken_for_this_one(tmp_path):
    write_result(str(tmp_path), "metrics", result(5, 1.0))
    with pytest.raises(ValueError, match="evaluations of an earlier run"):
        run(tmp_path, 4, Planned({}), patience=None)
