"""Which checkpoints are scored, what is scored anew, and where results lie."""

import json
import os

import keras
import pytest
import seqio
import tensorflow as tf

from remixer_tf import configuration
from remixer_tf import eval as eval_binary
from remixer_tf.checkpoints.host import Host
from remixer_tf.checkpoints.writing import write_weights
from remixer_tf.evaluation import evaluate as evaluate_module
from remixer_tf.evaluation.best import Best
from remixer_tf.evaluation.evaluate import evaluate
from remixer_tf.evaluation.results import read_results
from remixer_tf.training.loop import train
from tests.data.toy_tasks import toy_task
from tests.evaluation.shift import (
    DEV,
    decoded,
    make_shift,
    save,
    shift_engine,
)
from tests.training import toy


def score(tmp_path, evaluation=None, **kwargs):
    """Evaluates; returns the step, the metric, and how many parts were decoded."""
    calls = []
    evaluation = evaluation or decoded()
    predict = evaluation.predict
    evaluation.predict = lambda *args: calls.append(args) or predict(*args)
    (results,) = evaluate(str(tmp_path), make_shift, [evaluation], **kwargs)
    result = results["toy"]["dev"]
    return result["step"], result["metrics"]["em"], len(calls)


def test_the_checkpoint_of_the_step(tmp_path):
    save(tmp_path, 5, shift=0.0)
    save(tmp_path, 9)
    assert score(tmp_path) == (9, 0.6, 1)
    assert score(tmp_path, step=5) == (5, 0.4, 1)
    assert score(tmp_path, step=5) == (5, 0.4, 0)
    with pytest.raises(FileNotFoundError, match="step 6 .* steps 5, 9"):
        score(tmp_path, step=6)
    with pytest.raises(FileNotFoundError, match="best.json"):
        score(tmp_path, step="best")
    (tmp_path / "best.json").write_text('{"step": 5, "metric": "em", "value": 0.4}')
    assert score(tmp_path, step="best") == (5, 0.4, 0)


def test_another_checkpoint_of_a_step_or_dtype_is_scored_anew(tmp_path):
    save(tmp_path, 3)
    assert score(tmp_path) == (3, 0.6, 1)
    save(tmp_path, 3, shift=0.0)
    assert score(tmp_path) == (3, 0.4, 1)
    assert score(tmp_path) == (3, 0.4, 0)
    assert score(tmp_path, dtype_policy="mixed_bfloat16") == (3, 0.4, 1)
    assert score(tmp_path, decoded(max_examples=2)) == (3, 0.0, 1)


def test_each_checkpoint_is_scored_as_it_appears(tmp_path, monkeypatch):
    end = tmp_path / "train_summary.json"
    events = iter(
        [
            lambda: save(tmp_path, 2),
            lambda: save(tmp_path, 5),
            lambda: end.write_text("{}"),
        ]
    )
    # What training does while the evaluation waits.
    monkeypatch.setattr(evaluate_module.time, "sleep", lambda _: next(events)())
    save(tmp_path, 1)
    assert score(tmp_path, step="each") == (5, 0.6, 3)
    folder = tmp_path / "eval" / "toy" / "dev"
    assert sorted(p.name for p in folder.iterdir()) == ["1", "2", "5"]
    assert score(tmp_path, step="each") == (5, 0.6, 0)


def test_each_of_a_run_that_ended_without_a_checkpoint(tmp_path):
    (tmp_path / "train_summary.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        score(tmp_path, step="each")


def test_a_run_that_goes_on_has_not_ended(tmp_path):
    """`eval --step=each` beside it waits for what is to come."""
    ended = []

    class Watch:
        period = 2

        def check(self, model_dir, others):
            pass

        def run(self, model_dir, engine, step, **key):
            ended.append((step, os.path.exists(tmp_path / "train_summary.json")))

    for steps in (2, 4):
        train(
            str(tmp_path),
            toy.ToyModel,
            lambda: keras.optimizers.Adam(0.01),
            toy.toy_dataset,
            train_steps=steps,
            evaluations=[Watch()],
        )
    # At step 2 a second time, before it is clear that there is something to do.
    assert ended == [(2, False), (2, True), (4, False)]
    assert (tmp_path / "train_summary.json").exists()


def test_two_evaluations_of_a_split(tmp_path):
    engine = shift_engine()
    full, part = decoded(), decoded(max_examples=2, name="part")
    for evaluation in (full, part):
        evaluation.check(str(tmp_path), [full, part])
        evaluation.run(str(tmp_path), engine, 3)
    assert [r["metrics"]["em"] for r in read_results(str(tmp_path))] == [1.0, 0.6]
    assert (tmp_path / "eval" / "part" / "toy" / "dev" / "3").is_dir()
    folders = sorted(p.name for p in (tmp_path / "tensorboard" / "train").iterdir())
    assert folders == ["eval_part_toy_dev", "eval_toy_dev"]
    for metric, value in {"toy/dev/em": 0.6, "part/toy/dev/em": 1.0}.items():
        best = Best(metric).find(str(tmp_path), [full, part], engine.model, 3)
        assert best == (3, value, False)

    with pytest.raises(ValueError, match="Two evaluations of toy/dev .* same name ''"):
        full.check(str(tmp_path), [full, decoded(max_examples=2)])


def test_all_hosts_evaluate_and_the_first_writes(tmp_path, capsys):
    engine, barriers = shift_engine(), []
    for index, files in ((1, False), (0, True)):
        engine.host = Host(index, 2, lambda: barriers.append("all are here"))
        results = decoded().run(str(tmp_path), engine, 3)
        assert results["toy"]["dev"]["metrics"] == {"em": 0.6, "type/short": 1.0}
        assert (tmp_path / "eval").exists() == files
        assert bool(capsys.readouterr().out) == files
    assert len(barriers) == 2


def test_a_split_is_read_and_counted_once(tmp_path):
    reads = []

    def dataset_fn(split, shuffle_files):
        reads.append(split)
        inputs, targets = zip(*DEV, strict=True)
        return tf.data.Dataset.from_tensor_slices(
            {"inputs": list(inputs), "targets": list(targets)}
        )

    source = seqio.FunctionDataSource(dataset_fn, splits=["dev"])
    evaluation = decoded(toy_task({"dev": DEV}).replace(source=source))
    evaluation.run(str(tmp_path), shift_engine(), 1)
    first = len(reads)
    evaluation.run(str(tmp_path), shift_engine(0.0), 2)
    assert len(reads) == first
    assert [r["metrics"]["em"] for r in read_results(str(tmp_path))] == [0.6, 0.4]


def test_examples_in_tensorboard(tmp_path):
    task = toy_task({"dev": [("ab", "ab"), ("c", "d|e"), ("f", "g")]})
    evaluation = decoded(task, max_examples=2)
    result = evaluation.run(str(tmp_path), shift_engine(0.0), 7)["toy"]["dev"]
    assert (result["metrics"]["em"], result["examples"]) == (0.5, 2)
    texts = []
    for path in (tmp_path / "tensorboard" / "train" / "eval_toy_dev").iterdir():
        for record in tf.data.TFRecordDataset(str(path)):
            for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value:
                if "examples" in value.tag:
                    texts.append(tf.make_ndarray(value.tensor).item().decode())
    (text,) = texts
    assert "| ab | ab | ab |" in text and "| c | d&#124;e | c |" in text


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
    write_weights(str(tmp_path), model, 2)
    eval_binary.main(
        [
            f"--model_dir={tmp_path}",
            "--step=2",
            "--gin.DecodedEvaluation.splits=['test']",
            "--gin.DecodedEvaluation.max_examples=3",
            "--gin.DecodedEvaluation.max_decode_length=4",
            "--gin.evaluate.evaluations=[@DecodedEvaluation(), @a/DecodedEvaluation()]",
            "--gin.a/DecodedEvaluation.max_examples=2",
        ]
    )
    out = capsys.readouterr().out
    assert "mini_cogs at step 2" in out and "a/mini_cogs at step 2" in out
    folder = tmp_path / "eval" / "mini_cogs" / "test" / "2"
    assert json.loads((folder / "metrics.json").read_text())["examples"] == 3
    folder = tmp_path / "eval" / "a" / "mini_cogs" / "test" / "2"
    assert json.loads((folder / "metrics.json").read_text())["examples"] == 2
