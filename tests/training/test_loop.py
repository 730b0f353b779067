"""The loop: it trains, writes, continues exactly, and says what is wrong."""

import functools
import gzip
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from remixer_tf import optimizers, waiting
from remixer_tf.checkpoints.reading import (
    available_steps,
    checkpoint_path,
    restore_model,
    tensor_name,
)
from remixer_tf.checkpoints.vocabularies import check_vocabularies
from remixer_tf.engines.backend_engine import backend_engine
from remixer_tf.engines.jax.engine import JaxEngine
from remixer_tf.engines.tensorflow.engine import TensorFlowEngine
from remixer_tf.errors import UserError
from remixer_tf.evaluation.results import write_result
from remixer_tf.optimizers.schedules import WarmupConstant
from remixer_tf.run import Run
from remixer_tf.training import progress, timed_batches
from remixer_tf.training.logs import Totals
from remixer_tf.training.run_files import write_configuration
from remixer_tf.training.settings import Watching
from remixer_tf.training.stop_signal import PREEMPTED, StopSignal
from remixer_tf.training.timed_batches import TimedBatches
from tests.training import toy

ON_JAX = keras.backend.backend() == "jax"
BY_XLA, BY_KERNELS = (
    functools.partial(TensorFlowEngine, jit_compile=jit) for jit in (True, False)
)
ENGINES = (
    [JaxEngine]
    if ON_JAX
    else [BY_KERNELS, pytest.param(BY_XLA, marks=pytest.mark.slow)]
)


def run(model_dir, train_steps, **options):
    options = {"log_period": 1, "checkpoint_period": 5, "keep": 9} | options
    made = {"model": lambda: toy.ToyModel(dropout_rate=0.3)}
    names = ("model", "dtype_policy", "engine")
    made |= {name: options.pop(name) for name in names if name in options}
    return toy.train_toy(Run(**made), model_dir, train_steps, **options)


@pytest.fixture
def reports(monkeypatch):
    """Collects what the log lines show, {step: values}."""
    values = {}
    monkeypatch.setattr(
        progress.Progress, "report", lambda self, step, new: values.update({step: new})
    )
    return values


def read_checkpoint(model_dir, step):
    folder = checkpoint_path(f"{model_dir}/checkpoints", step)
    reader = tf.train.load_checkpoint(f"{folder}/state")
    names = reader.get_variable_to_shape_map()
    return {k: reader.get_tensor(k) for k in names if k.endswith("VARIABLE_VALUE")}


def read_events(model_dir):
    """Yields (step, summary) of what a run told TensorBoard."""
    (events,) = (model_dir / "tensorboard" / "train").iterdir()
    for record in tf.data.TFRecordDataset(str(events)):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            yield event.step, value


@pytest.mark.quick_on_jax
@pytest.mark.parametrize("engine", ENGINES)
def test_continuing_is_bitwise_exact(tmp_path, reports, engine):
    run(tmp_path / "whole", 10, engine=engine)
    whole = {step: dict(values) for step, values in reports.items()}
    reports.clear()
    run(tmp_path / "parts", 5, engine=engine)
    np.random.seed(9)  # Nothing of the process may matter.
    keras.utils.set_random_seed(9)
    run(tmp_path / "parts", 10, engine=engine)
    assert sorted(reports) == sorted(whole) == list(range(1, 11))
    for step, values in whole.items():
        for name in ("loss", "token_accuracy", "gradient_norm", "learning_rate"):
            assert reports[step][name] == values[name], (step, name)
    whole, parts = (read_checkpoint(tmp_path / n, 10) for n in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert sum("seed_generator" in name for name in whole) == 1
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)


def test_writes_checkpoints_tensorboard_summary_and_configuration(tmp_path, capsys):
    summary = run(
        tmp_path,
        12,
        steps_per_call=2,
        log_period=4,
        checkpoint_period=8,
        configuration=lambda: ("gin", {"rate": 1.0}),
    )
    output = capsys.readouterr().out
    assert available_steps(tmp_path / "checkpoints") == [8, 12]
    assert (tmp_path / "operative_config.gin").read_text() == "gin"
    assert json.loads((tmp_path / "train_summary.json").read_text()) == summary
    parameters = 16 * 8 + 8 * 16 + 16
    assert (summary["parameters"], summary["steps"]) == (parameters, 12)
    assert summary["steps_per_second"] > 0 and summary["tokens_per_second"] > 0
    mean = summary["flops_per_second"] / summary["steps_per_second"]
    assert summary["flops_per_step"] == pytest.approx(mean) and mean > 0
    # At least the embedded tokens' logits, and an update of each parameter.
    assert summary["rest_flops_per_step"] > parameters
    assert f"{parameters} parameters" in output
    assert "8 in all, 8 per replica, 2 step(s) per call" in output
    assert "inputs 6 / targets 6" in output
    assert "step 12/12" in output

    steps, texts = {}, {}
    for step, value in read_events(tmp_path):
        steps.setdefault(value.tag, []).append(step)
        if value.metadata.plugin_data.plugin_name == "text":
            texts[value.tag] = tf.make_ndarray(value.tensor).item().decode()
    for name in ("loss", "token_accuracy", "z_loss", "learning_rate", "gradient_norm"):
        assert steps[name] == [4, 8, 12], name
    assert steps["steps_per_second"] == [4, 8, 12]
    for name in ("parameter_norm", "share_of_matmul_rate", "host_memory_gigabytes"):
        assert steps[name] == [4, 8, 12], name
    assert "    gin" in texts["configuration"]
    assert "| toy/embedding/embeddings | [16, 8] | 128 |" in texts["parameters"]
    assert "_hparams_/session_start_info" in steps
    assert steps["goodput"] == [4, 8, 12] and 0 < summary["goodput"] < 1
    assert "model_flops_utilization" not in steps  # A CPU's peak is unknown.


def test_utilization_of_a_given_peak(tmp_path, reports):
    """MFU is FLOPs per step x steps per second, over the peak of one device."""
    watching = Watching(peak_flops=1e12)
    summary = run(tmp_path, 4, log_period=2, watching=watching)
    for values in list(reports.values())[1:]:  # Before, all calls compiled.
        used = summary["flops_per_step"] * values["steps_per_second"]
        assert values["model_flops_utilization"] == pytest.approx(used / 1e12)


def test_statistics_are_curves_and_histograms_and_bad_experts_are_named(
    tmp_path, capsys
):
    class Lazy(toy.ReportingModel):
        def call(self, batch, training=False):
            tokens = keras.ops.minimum(
                batch["encoder_input_tokens"], 7
            )  # experts 0 and 1
            return super().call({**batch, "encoder_input_tokens": tokens}, training)

    run(tmp_path, 4, model=Lazy, log_period=2)
    output = capsys.readouterr().out
    assert output.count("toy/logits: 2 of 4 experts unused (2, 3)") == 2
    kinds = {}
    for _, value in read_events(tmp_path):
        kinds[value.tag] = value.metadata.plugin_data.plugin_name
    name = "statistics/toy/logits"
    assert {k: v for k, v in kinds.items() if k.startswith("statistics")} == {
        f"{name}/load": "histograms",
        f"{name}/mean": "scalars",
        f"{name}/load_largest_over_mean": "scalars",
    }


def test_a_dry_run_says_what_would_run_and_writes_nothing(tmp_path, capsys):
    assert run(tmp_path / "run", 4, dry_run=True) is None
    output = capsys.readouterr().out
    for words in ("toy, 272 parameters", "inputs 6 / targets 6", "96 tokens per step"):
        assert words in output
    assert re.search(r"memory +about 0.00 GB per replica, of [\d.]+ GB", output)
    assert "dry run: nothing was trained" in output
    assert not list(tmp_path.iterdir())


def test_a_start_makes_room_on_a_full_disk(tmp_path, monkeypatch):
    unfinished = tmp_path / "checkpoints" / "writing-4"
    unfinished.mkdir(parents=True)
    write = tf.io.gfile.GFile.write

    def fill(self, content):
        if unfinished.exists():
            raise tf.errors.ResourceExhaustedError(None, None, "No space left on it")
        write(self, content)

    monkeypatch.setattr(tf.io.gfile.GFile, "write", fill)
    run(tmp_path, 1)
    assert available_steps(tmp_path / "checkpoints") == [1]


def test_a_start_that_fails_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="dtype"):
        run(tmp_path / "runs" / "a", 1, dtype_policy="float16")
    assert not os.listdir(tmp_path)
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match="dtype"):
        run(tmp_path / "mine", 1, dtype_policy="float16")
    assert os.listdir(tmp_path) == ["mine"]

    # The vocabularies are written before the model reads a batch.
    def model():
        model = toy.ToyModel()
        model.vocab_size = 15
        return model

    def dataset(**options):
        data = toy.toy_dataset(**options)
        data.vocabularies = {
            "targets": {"size": 15, "file": str(words), "sha256": "0" * 64}
        }
        return data

    words = tmp_path / "mine" / "words.model"
    words.write_bytes(b"words")
    for folder in ("mine", "b"):
        with pytest.raises(ValueError, match="token id 15"):
            run(tmp_path / folder, 1, model=model, dataset=dataset)
    assert os.listdir(tmp_path) == ["mine"]
    assert os.listdir(tmp_path / "mine") == ["words.model"]


def test_a_killed_start_leaves_no_vocabulary_to_compare(tmp_path):
    """Nothing was trained, so another vocabulary may be taken."""
    new = {"targets": {"kind": "bytes", "size": 15, "extra_ids": 0}}
    (tmp_path / "vocabularies.json").write_text('{"targets": {"size": 7}}')

    class Evaluation:
        period = 1

        def check(self, model_dir, evaluations):
            check_vocabularies(model_dir, new)

        def run(self, *args, **kwargs):
            return {}

    def dataset(**options):
        data = toy.toy_dataset(**options)
        data.vocabularies = new
        return data

    run(tmp_path, 1, dataset=dataset, evaluations=[Evaluation()])
    assert '"size": 15' in (tmp_path / "vocabularies.json").read_text()


def test_a_dry_run_leaves_a_live_run_alone(tmp_path):
    run(tmp_path, 2, checkpoint_period=1)
    (tmp_path / "checkpoints/2/state.index").unlink()
    for name in ("writing-3", "removing-0"):
        (tmp_path / "checkpoints" / name).mkdir()
    before = sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))
    run(tmp_path, 4, dry_run=True)
    assert before == sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))


def test_an_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Nothing can be written to --model_dir .*/file/"):
        run(tmp_path / "file" / "run", 2)


def test_a_second_run_in_the_folder_is_refused(tmp_path):
    def dataset(**options):
        with pytest.raises(OSError, match=f"Process {os.getpid()} on .* trains in "):
            run(tmp_path, 2)
        return toy.toy_dataset(**options)

    run(tmp_path, 2, dataset=dataset)
    with pytest.raises(ValueError, match="another model or optimizer"):
        run(tmp_path, 4, optimizer=lambda: keras.optimizers.SGD(0.1))
    run(tmp_path, 4)  # Neither the end nor an error leaves it locked.
    assert available_steps(tmp_path / "checkpoints") == [2, 4]


@pytest.mark.slow
def test_the_configured_learning_rate_wins(tmp_path, reports):
    def adam(rate):
        return lambda: keras.optimizers.Adam(rate)

    run(tmp_path, 1, optimizer=adam(0.01))
    run(tmp_path, 2, optimizer=adam(0.002))
    run(tmp_path, 3, optimizer=adam(WarmupConstant(0.003)))
    run(tmp_path, 4, optimizer=adam(0.004))
    rates = [values["learning_rate"] for _, values in sorted(reports.items())]
    np.testing.assert_allclose(rates, [0.01, 0.002, 0.003, 0.004], rtol=1e-6)


@pytest.mark.slow
def test_a_changed_configuration_is_told_and_the_earlier_one_kept(tmp_path, capsys):
    def go_on(train_steps, text):
        run(tmp_path, train_steps, configuration=lambda: (text, {}))
        return capsys.readouterr().out

    old = "import seqio\nRATE = 0.1\nRun.seed = 0\nf.a = 'same'\n"
    new = "import seqio\nRATE = 0.2\nf.a = 'same'\nf.b = \\\n    (1,\n     %RATE)\n"
    assert "has changed" not in go_on(1, old)
    same = f"# The same.\n{old}relative_paths.folders = '.'"
    assert "has changed" not in go_on(2, same)
    kept = tmp_path / "operative_config_2.gin"
    assert not kept.exists()
    output = go_on(3, new)
    for line in (
        f"the configuration has changed since {kept}:",
        "  RATE: 0.1, now 0.2",
        "  Run.seed: 0, now not set",
        "  f.b: not set, now (1, %RATE)",
    ):
        assert f"{line}\n" in output
    assert "f.a" not in output and "folders" not in output
    assert (tmp_path / "operative_config.gin").read_text() == new
    assert old in kept.read_text()
    assert go_on(4, "".join(f"M{i} = {i}\n" for i in range(20))).count("now") == 10


def test_defaults_that_training_adds_to_a_new_run_are_no_change(tmp_path):
    """A run of published weights lacks those of parts that only training calls."""
    file = tmp_path / "operative_config.gin"
    file.write_text("f.a = 1\nf.b = 2\n")
    assert write_configuration(str(tmp_path), "f.a = 1\nf.b = 2\nf.c = 3\n", 0) == ""
    assert [*tmp_path.iterdir()] == [file] and "f.c" in file.read_text()
    changed = write_configuration(str(tmp_path), "f.a = 2\nf.b = 2\nf.c = 3\n", 0)
    assert changed.endswith("operative_config_0.gin:\n  f.a: 1, now 2")


def test_training_again_says_that_it_is_done(tmp_path, capsys):
    run(tmp_path, 2)
    capsys.readouterr()
    assert run(tmp_path, 2) is None
    assert "is at step 2 of 2: nothing to do" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="its own count")
def test_a_step_counts_once_however_it_loops(tmp_path):
    counts = [
        run(tmp_path / str(i), 4, **options)["flops_per_step"]
        for i, options in enumerate(
            [
                {},
                {"steps_per_call": 4, "log_period": 4, "checkpoint_period": 4},
                {"micro_batches": 4},
            ]
        )
    ]
    assert counts[0] == counts[1] == counts[2] > 0


@pytest.mark.slow
def test_flops_that_an_earlier_version_did_not_count(tmp_path, monkeypatch):
    """A sum that leaves some steps out would look like a quick model."""
    summary = Totals.summary

    def earlier(self, step):
        found = summary(self, step).items()
        return {name: value for name, value in found if "rest" not in name}

    with monkeypatch.context() as patch:
        patch.setattr(Totals, "summary", earlier)
        run(tmp_path, 2)
    found = run(tmp_path, 4)
    assert found["counted_steps"] == 4 and not any("rest" in name for name in found)


@pytest.mark.slower
def test_a_summary_counts_all_processes(tmp_path):
    def longer(**options):  # All texts twice.
        return toy.toy_dataset(**options).map(
            lambda batch: {k: tf.concat([v, v], axis=-1) for k, v in batch.items()}
        )

    def summary(folder):
        return json.loads((folder / "train_summary.json").read_text())

    first, whole = (run(tmp_path / "one", steps) for steps in (2, 6))
    assert whole["seconds"] > first["seconds"] > 0
    assert whole["tokens"] / first["tokens"] == pytest.approx(3, rel=0.5)
    for name in ("steps", "flops", "rest_flops"):
        assert whole[name] == 3 * first[name]
    assert whole["flops_per_step"] == first["flops_per_step"]
    for found in (first, whole):
        assert found["flops_per_step"] * found["steps"] == found["flops"]
        assert found["flops_per_token"] * found["tokens"] == pytest.approx(
            found["flops"]
        )

    # The mean of short and long batches, and not those of the last process.
    mean = run(tmp_path / "one", 8, dataset=longer, restart_data_at=6)
    assert mean["flops_per_step"] == pytest.approx(
        first["flops_per_step"] * (6 + 2 * 2) / 8, rel=0.05
    )

    # A kill after the last step leaves no summary; the next start writes it.
    (tmp_path / "one" / "train_summary.json").unlink()
    assert run(tmp_path / "one", 8, dataset=longer) is None
    times = dict.fromkeys(("seconds", "goodput"))  # when each was written
    assert mean | times == summary(tmp_path / "one") | times
    # Neither has a checkpoint of an earlier version one.
    (tmp_path / "one" / "train_summary.json").unlink()
    for name in ("summary.json", "checksums.json"):
        (tmp_path / "one" / "checkpoints" / "8" / name).unlink()
    run(tmp_path / "one", 8, dataset=longer)
    assert summary(tmp_path / "one") == {"steps": 8}


@pytest.mark.slow
def test_a_kill_in_the_first_evaluation_is_no_other_run(tmp_path):
    folder = tmp_path / "eval" / "toy" / "dev" / "2"
    folder.mkdir(parents=True)
    (folder / "predictions.jsonl").write_text("{}\n")
    run(tmp_path, 1)
    (folder / "metrics.json").write_text("{}\n")
    run(tmp_path, 2)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(ValueError, match="holds evaluations of an earlier run"):
        run(tmp_path, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps_per_call": 3}, "train_steps=10 is not a multiple of steps_per_call=3"),
        ({"steps_per_call": 2, "log_period": 5}, "log_period=5 .*steps_per_call=2"),
        ({"steps_per_call": 10}, "log_period=1 .*steps_per_call=10"),
        ({"checkpoint_period": 0}, "checkpoint_period must be an integer"),
        ({"dtype_policy": "float16"}, "'float32', 'mixed_bfloat16'.*'float16'"),
        (
            {"engine": lambda: backend_engine(lambda: TensorFlowEngine("magic"), None)},
            "no strategy called 'magic'",
        ),
    ][: 5 if ON_JAX else None],
)
def test_wrong_arguments(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        run(tmp_path, 10, **options)


def test_the_other_engine_says_what_it_needs(tmp_path):
    other = TensorFlowEngine if ON_JAX else JaxEngine
    needs = "needs Keras on tensorflow.*jax" if ON_JAX else "KERAS_BACKEND=jax"
    with pytest.raises(ValueError, match=needs):
        run(tmp_path, 1, engine=other)
    assert not os.listdir(tmp_path)


def test_a_token_beyond_the_vocabulary_names_both_numbers(tmp_path):
    def model():
        model = toy.ToyModel()
        model.vocab_size = toy.VOCAB_SIZE - 1
        return model

    with pytest.raises(ValueError, match="token id 15, .* vocab_size is 15"):
        run(tmp_path, 1, model=model)


def test_a_vocabulary_larger_than_the_model_is_told_whatever_the_data_hold(tmp_path):
    def model():
        model = toy.ToyModel()
        model.vocab_size = toy.VOCAB_SIZE
        return model

    def dataset(**options):
        data = toy.toy_dataset(**options)
        data.vocabularies = {"targets": {"size": 259}}
        return data

    with pytest.raises(
        ValueError, match="has 259 ids, .* is 16. Set VOCAB_SIZE to 384"
    ):
        run(tmp_path, 1, model=model, dataset=dataset)


def test_continuing_with_data_of_another_shape_names_both(tmp_path):
    run(tmp_path, 1)
    with pytest.raises(ValueError) as error:
        run(tmp_path, 2, dataset=lambda **kw: toy.toy_dataset(batch_size=4, **kw))
    assert "decoder_target_tokens [1, 8, 6]" in str(error.value)
    assert "decoder_target_tokens [1, 4, 6]" in str(error.value)


@pytest.mark.slower
@pytest.mark.parametrize(
    "change", ["batch_size"] if ON_JAX else ["batch_size", "task", "lengths"]
)
def test_the_data_may_start_anew(tmp_path, capsys, change):
    def dataset(**options):
        if change == "batch_size":
            return toy.toy_dataset(batch_size=4, **options)
        data = toy.toy_dataset(**options)
        if change == "task":  # Of the same shapes.
            return data.map(lambda batch: batch).unbatch().batch(1)
        return data.map(lambda batch: {k: v[..., :5] for k, v in batch.items()})

    run(tmp_path, 5)
    with pytest.raises(ValueError, match=r"other data.*[\S\s]*restart_data_at=5"):
        run(tmp_path, 6, dataset=dataset)
    run(tmp_path, 7, dataset=dataset, restart_data_at=5, checkpoint_period=1)
    assert "from step 5; the data starts anew" in capsys.readouterr().out
    first, second = (read_checkpoint(tmp_path, step) for step in (5, 7))
    moved = [n for n in first if "model/" in n and (first[n] != second[n]).any()]
    iterations = next(name for name in first if "iteration" in name)
    assert moved and (first[iterations], second[iterations]) == (5, 7)
    # From a later checkpoint it continues exactly, with the same words.
    run(tmp_path / "whole", 5)
    run(tmp_path / "whole", 9, dataset=dataset, restart_data_at=5)
    run(tmp_path, 9, dataset=dataset, restart_data_at=5)
    assert "continuing from step 7\n" in capsys.readouterr().out
    whole, parts = (read_checkpoint(p, 9) for p in (tmp_path / "whole", tmp_path))
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)


def test_a_loss_that_is_not_finite_stops_before_it_is_saved(tmp_path):
    def explode():
        return keras.optimizers.SGD(
            keras.optimizers.schedules.PiecewiseConstantDecay([6], [1e-3, 1e30])
        )

    with pytest.raises(
        FloatingPointError, match="finite in step .*last checkpoint is good"
    ):
        run(tmp_path, 20, optimizer=explode, log_period=20)
    assert available_steps(tmp_path / "checkpoints") == [5]
    (folder,) = tmp_path.glob("nonfinite-*")
    batch = np.load(folder / "batch-0-of-1.npz")
    assert batch["decoder_target_tokens"].shape == (1, 8, 6)
    assert (folder / "operative_config.gin").exists()


@pytest.mark.slow
def test_float16_resumes_exactly_and_from_other_precisions(tmp_path, reports):
    """Gradients overflow in step 3. A float32 checkpoint has no scale."""
    half = {"dtype_policy": "mixed_float16", "checkpoint_period": 4}
    half["model"] = functools.partial(toy.Overflowing, dropout_rate=0.3)
    run(tmp_path / "whole", 6, **half)
    scales = [reports[step]["loss_scale"] for step in range(1, 7)]
    assert scales == [32768] * 2 + [16384] * 4
    assert reports[6]["skipped_steps"] == 1
    run(tmp_path / "parts", 4, **half)
    run(tmp_path / "parts", 6, **half)
    whole, parts = (read_checkpoint(tmp_path / n, 6) for n in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)
    values = {"scale": 16384, "finite_steps": 3, "iteration": 5}
    for name, value in values.items():
        group = "optimizer" if name == "iteration" else "loss_scale"
        assert whole[tensor_name(group, name)] == value
    run(tmp_path / "parts", 7, **half | {"dtype_policy": "float32"})
    run(tmp_path / "parts", 8, **half)
    assert reports[8]["loss_scale"] == 32768


def test_mixed_bfloat16_is_not_left_behind(tmp_path, capsys):
    run(tmp_path, 1, dtype_policy="mixed_bfloat16")
    assert keras.config.dtype_policy().name == "float32"
    assert "mixed_bfloat16" in capsys.readouterr().out


def test_speed_leaves_pauses_out(monkeypatch):
    clock = iter([0.0, 10.0, 20.0])
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    speed = progress.Speed()
    speed.skip(8.0, read=5.0)
    speed.count(steps=2, flops=6.0, waited=0.5, read=25.0)
    rates = {
        "steps_per_second": 1.0,
        "tokens_per_second": 10.0,
        "flops_per_second": 3.0,
        "input_wait": 0.25,
    }
    assert speed.lap("tokens") == rates
    speed.skip(9.0)
    assert speed.lap("tokens") == {}
    assert speed.mean("tokens") == pytest.approx(
        rates
        | {
            "steps_per_second": 2 / 3,
            "tokens_per_second": 20 / 3,
            "flops_per_second": 2,
            "input_wait": 0.5 / 3,
        }
    )


@pytest.mark.slow
@pytest.mark.skipif(ON_JAX, reason="40 s; it passes there when it is run by hand")
def test_killed_at_any_moment_it_goes_on_exactly():
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.kill_run", "--kills=2"],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "2 kills" in done.stdout and "all losses and weights equal" in done.stdout


@pytest.mark.parametrize(
    ("number", "when"),
    [
        (signal.SIGTERM, "step"),
        (signal.SIGTERM, "start"),
        (signal.SIGHUP, "evaluation"),  # The terminal was closed.
        (signal.SIGINT, "step"),
        (signal.SIGINT, "start"),
        (signal.SIGINT, "evaluation"),
    ],
)
def test_a_signal_ends_the_run_at_once_and_nothing_is_lost(
    tmp_path, capsys, monkeypatch, number, when
):
    def send(*args, **kwargs):
        os.kill(os.getpid(), number)

    def after_call(self, step, batch, metrics):
        if step == 3:
            send()

    class Evaluation:
        period = 3

        def check(self, model_dir, evaluations):
            pass

        def run(self, *args, **kwargs):
            send()
            pytest.fail("it went on")

    options = {"checkpoint_period": 1_000_000, "log_period": 1_000_000}
    step = 3
    if when == "step":
        monkeypatch.setattr(progress.Progress, "after_call", after_call)
    elif when == "start":
        options["initial"] = send
        step = None
    else:
        options["evaluations"] = [Evaluation()]
    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # under nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    handlers = [*map(signal.getsignal, numbers)]
    ends = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    with pytest.raises(ends) as exit_:
        run(tmp_path, 3_000_000, **options)
    output = capsys.readouterr().out
    if ends is SystemExit:
        assert exit_.value.code == PREEMPTED
        message = output.splitlines()[-1]
    else:
        message = str(exit_.value)
    assert message.startswith("Ctrl-C: " if number == signal.SIGINT else number.name)
    assert ("saved step 3" if when == "step" else "nothing is lost") in message
    assert available_steps(tmp_path / "checkpoints") == ([step] if step else [])
    assert handlers == [*map(signal.getsignal, numbers)]
    assert not (tmp_path / "run.lock").exists()
    if when == "step":
        run(tmp_path, step + 1)
        assert f"from step {step}" in capsys.readouterr().out


@pytest.mark.parametrize("alone", [True, False])
def test_a_signal_ends_the_wait_for_a_batch_that_does_not_come(monkeypatch, alone):
    """Of several processes it waits: the others would wait for it."""
    monkeypatch.setattr(waiting, "_SILENCE", 0.1)
    monkeypatch.setattr(waiting, "_PERIOD", 0.1)
    first = {"decoder_target_tokens": np.ones((1, 2, 3), "int32")}
    arrives = threading.Event()

    def read():
        yield first
        arrives.wait(1 if alone else 0.5)
        yield first

    engine = types.SimpleNamespace(model=None)
    with StopSignal(alone) as stop, stop.held():
        batches = TimedBatches(read(), engine, stop)
        batches.first = next(batches.iterator)
        with batches:
            assert next(batches) is first
            os.kill(os.getpid(), signal.SIGTERM)
            if not alone:
                assert next(batches) is first
                return
            with pytest.raises(SystemExit) as caught:
                next(batches)
            arrives.set()
    assert caught.value.code == PREEMPTED


@pytest.mark.parametrize(
    "hangs_at",
    [pytest.param([8, 2], id="twice", marks=pytest.mark.slow), [3]],
)
def test_a_run_whose_data_hang_is_saved_and_resumes_exactly(
    tmp_path, monkeypatch, hangs_at
):
    """The position in the data is unknown then: it is that of an earlier checkpoint."""
    arrives = threading.Event()

    class Hangs(waiting.Waiter):
        def __init__(self, read, leave):
            super().__init__(functools.partial(self.read, read, iter(range(1, 99))))
            self._leave = leave

        def read(self, function, reads):
            if next(reads) == hangs_at[0]:
                os.kill(os.getpid(), signal.SIGTERM)
                arrives.wait()
            return function()

    monkeypatch.setattr(waiting, "_SILENCE", 0.1)
    monkeypatch.setattr(waiting, "_PERIOD", 0.1)
    run(tmp_path / "whole", 10)
    with monkeypatch.context() as patch:
        patch.setattr(timed_batches, "_FAST", 0)
        patch.setattr(timed_batches, "Waiter", Hangs)
        step = 0
        while hangs_at:
            step += hangs_at[0] - 1
            with pytest.raises(SystemExit) as caught:
                run(tmp_path / "parts", 10)
            assert caught.value.code == PREEMPTED
            assert available_steps(tmp_path / "parts" / "checkpoints")[-1] == step
            hangs_at = hangs_at[1:]
    arrives.set()
    run(tmp_path / "parts", 10)
    whole, parts = (read_checkpoint(tmp_path / n, 10) for n in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)


def test_nohup_keeps_a_run_from_ending():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_of_several_processes_none_leaves_alone():
    """The first step tells the others, also of a signal that came before it."""
    with StopSignal(alone=False) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == signal.SIGTERM
        with stop.held(), stop.let_through():
            pass
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_process_ends_for_another_that_got_the_signal(capsys):
    with pytest.raises(SystemExit) as end, StopSignal(alone=False) as stop:
        stop.leave("saved step 3.")
    assert end.value.code == PREEMPTED
    assert "A signal came to another process: saved step 3." in capsys.readouterr().out


def test_a_folder_that_is_moved_meanwhile_is_one_line(tmp_path, monkeypatch):
    def after_call(self, step, batch, metrics):
        if step == 3:
            os.rename(tmp_path / "run", tmp_path / "moved")

    monkeypatch.setattr(progress.Progress, "after_call", after_call)
    with pytest.raises(UserError, match="run/run.lock any more: .*was moved"):
        run(tmp_path / "run", 6)
    assert os.listdir(tmp_path) == ["moved"]


def test_a_second_interrupt_does_not_wait():
    with StopSignal() as stop, pytest.raises(KeyboardInterrupt, match="twice"):
        with stop.held():
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.received == signal.SIGINT
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slower
def test_tensorboard_shows_each_step_once_after_going_back(tmp_path):
    from tensorboard.backend.event_processing import plugin_event_accumulator as reader

    class Evaluation:
        period = 4
        check = staticmethod(lambda *_: None)

        @staticmethod
        def run(model_dir, engine, step, force, **_):
            result = {"task": "toy", "split": "dev", "step": step}
            if force:  # Otherwise the result is there.
                write_result(model_dir, "loss", {**result, "metrics": {"loss": 1.0}})

    for _ in range(2):
        options = {"log_period": 2, "checkpoint_period": 4}
        run(tmp_path, 8, evaluations=[Evaluation()], **options)
        shutil.rmtree(tmp_path / "checkpoints" / "8")
    folder = tmp_path / "tensorboard" / "train"
    for path, tag, steps in (
        (folder, "loss", [2, 4, 6, 8]),
        (folder / "eval/toy/dev", "eval/loss", [4, 8]),
    ):
        read = reader.EventAccumulator(str(path)).Reload()
        assert [event.step for event in read.Tensors(tag)] == steps


def test_progress_bar(capsys, monkeypatch):
    monkeypatch.setattr(progress.console, "draws", lambda: True)
    with progress.Progress(0, 10) as bar:
        bar.message("[a message]")
        bar.after_call(4, None, None)
        bar.report(4, {"loss": 1.5, "token_accuracy": 0.5})
    output = capsys.readouterr().out
    assert "[a message]" in output and "4/10" in output and "1.5000" in output


def test_seconds_as_people_write_them():
    assert progress.format_seconds(3723.4) == "1:02:03"


def trace_of(model_dir):
    """The names in the trace that Perfetto opens, next to the one of TensorBoard."""
    (folder,) = (model_dir / "tensorboard/train/plugins/profile").iterdir()
    kinds = sorted(path.name.split(".", 1)[1] for path in folder.iterdir())
    assert kinds == ["trace.json.gz", "xplane.pb"]
    (path,) = folder.glob("*.trace.json.gz")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    return [event["name"] for event in events if event.get("ph") == "X"]


@pytest.mark.slower
@pytest.mark.quick_on_jax
def test_a_trace_of_some_steps(tmp_path, capsys):
    run(tmp_path, 6, profile=(2, 4))
    assert trace_of(tmp_path).count("train") == 2
    assert "the trace of steps 2 to 4 is in" in capsys.readouterr().out
    run(tmp_path, 8, profile=(2, 4))
    assert "no trace is written: --profile begins at step 2" in capsys.readouterr().out
    for profile in ((4, 4), (2, 9), (-1, 2)):
        with pytest.raises(ValueError, match=r"0 <= START < STOP <= 8 \(train_steps\)"):
            run(tmp_path, 8, profile=profile)


@pytest.mark.slow
def test_a_run_that_fails_writes_its_trace(tmp_path):
    def dataset(**options):
        data = toy.toy_dataset(**options)
        return data.take(3)

    with pytest.raises(StopIteration):
        run(tmp_path, 6, dataset=dataset, profile=(0, 6))
    assert trace_of(tmp_path).count("train") == 3


@pytest.mark.slow
@pytest.mark.quick_on_jax
@pytest.mark.parametrize("engine", ENGINES[:1])
def test_averages_of_weights_are_evaluated_and_restored(tmp_path, engine):
    """Keras' rule: weights of step 1, then m * average + (1 - m) * weights."""
    evaluated = {}

    class Evaluation:
        period = 1
        check = staticmethod(lambda *_: None)

        @staticmethod
        def run(model_dir, engine, step, **_):
            weights = engine.model.trainable_variables
            evaluated[step] = {v.path: keras.ops.convert_to_numpy(v) for v in weights}

    def optimizer():
        return keras.optimizers.Adam(0.1, use_ema=True, ema_momentum=0.75)

    options = {"checkpoint_period": 1, "optimizer": optimizer, "engine": engine}
    run(tmp_path / "parts", 2, evaluations=[Evaluation()], **options)
    run(tmp_path / "parts", 4, evaluations=[Evaluation()], **options)
    run(tmp_path / "alone", 4, **options)
    averages = {}
    for step in range(1, 5):
        checkpoints = [read_checkpoint(tmp_path / x, step) for x in ("parts", "alone")]
        for path, value in evaluated[step].items():
            weights, alone = (x[tensor_name("model", path)] for x in checkpoints)
            np.testing.assert_array_equal(weights, alone)
            average = 0.75 * averages.get(path, weights) + 0.25 * weights
            np.testing.assert_allclose(value, average, rtol=1e-5, atol=1e-7)
            averages[path] = average
    model = toy.ToyModel(dropout_rate=0.3)
    model.build()
    assert restore_model(str(tmp_path / "parts"), model) == 4
    for weight in model.trainable_variables:
        value = keras.ops.convert_to_numpy(weight)
        np.testing.assert_array_equal(value, evaluated[4][weight.path])


@pytest.mark.slower
@pytest.mark.parametrize("optimizer", ["Lion", "Muon", "ScheduleFreeAdamW"])
def test_other_optimizers_resume_exactly(tmp_path, optimizer):
    made = getattr(optimizers, optimizer, None) or getattr(keras.optimizers, optimizer)
    options = {"optimizer": functools.partial(made, 0.01)}
    first = run(tmp_path / "whole", 6, **options)
    run(tmp_path / "parts", 3, **options)
    assert run(tmp_path / "parts", 6, **options)["loss"] == first["loss"]
    whole, parts = (read_checkpoint(tmp_path / n, 6) for n in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)
