"""Which checkpoints are scored, what is scored anew, and where results lie."""

import functools
import json
import os

import keras
import pytest
import seqio
import tensorflow as tf
from tensorboard import context
from tensorboard.backend.event_processing import (
    data_provider,
    plugin_event_multiplexer,
)
from tensorboard.plugins import base_plugin
from tensorboard.plugins.hparams import backend_context

from remixer_tf import configuration
from remixer_tf.checkpoints.reading import hash_checkpoint
from remixer_tf.checkpoints.writing import write_weights
from remixer_tf.commands import run_command
from remixer_tf.engines.engine import Host
from remixer_tf.evaluation import evaluate as evaluate_module
from remixer_tf.evaluation.base import Evaluation
from remixer_tf.evaluation.best import Best
from remixer_tf.evaluation.evaluate import evaluate
from remixer_tf.evaluation.results import read_results
from remixer_tf.run import Run
from remixer_tf.tasks.text_metrics import accuracy
from tests.data.toy_tasks import toy_task, word_metric
from tests.evaluation.shift import (
    DEV,
    decoded,
    make_shift,
    save,
    shift_decode,
    shift_engine,
)
from tests.settings import part_of
from tests.training import toy


def score(tmp_path, evaluation=None, **kwargs):
    """Evaluates; returns the step, the metric, and how many parts were decoded."""
    calls = []
    evaluation = evaluation or decoded()
    predict = evaluation.predict
    evaluation.predict = lambda *args: calls.append(args) or predict(*args)
    (results,) = evaluate(Run(make_shift), str(tmp_path), [evaluation], **kwargs)
    result = results["toy"]["dev"]
    return result["step"], result["metrics"]["em"], len(calls)


@pytest.mark.parametrize("evaluations", ["a", ["a"], None, decoded])
def test_what_is_no_list_of_evaluations(evaluations, tmp_path):
    with pytest.raises(ValueError, match="evaluations must be a list .*Received"):
        evaluate(Run(make_shift), str(tmp_path), evaluations)


@pytest.mark.slow
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


@pytest.mark.slow
def test_other_data_is_seen(tmp_path, capsys):
    many = DEV + [("z", "z")] * 20
    save(tmp_path, 3)
    assert score(tmp_path, decoded(toy_task({"dev": many}))) == (3, 3 / 25, 1)
    many[-1] = ("z", "{")  # The answer to the very last is right now.
    assert score(tmp_path, decoded(toy_task({"dev": many}))) == (3, 4 / 25, 1)
    shown = capsys.readouterr().out
    assert "toy dev at step 3: evaluated again, with other examples" in shown


@pytest.mark.slow
def test_what_a_result_is_of(tmp_path, capsys):
    """Whatever changes its key has it computed again, and is named."""
    engine = shift_engine()

    def told(checkpoint="one", force=False, bindings=None, **kwargs):
        """How many parts were computed, and what is said of it."""
        evaluation = decoded(**kwargs)
        counts = []

        def predict(part, model, function):
            counts.append(part)
            return {}, evaluation.trial(evaluation._splits[part].examples)

        evaluation.predict = predict
        evaluation.run(
            str(tmp_path),
            engine,
            3,
            checkpoint=lambda: checkpoint,
            bindings=bindings,
            force=force,
        )
        lines = capsys.readouterr().out.splitlines()
        said = [line.partition(": ")[2] for line in lines if " at step 3: " in line]
        return len(counts), *said

    def anew(what):
        return 1, f"evaluated again, with other {what}"

    known = 0, "known result, --force computes again"
    bindings = {"beam_search.beams": "2"}
    assert told() == (1,) and told() == known and told(force=True) == (1,)
    assert told(batch_size=3, period=7) == known
    assert told(max_length=11) == anew("settings")
    assert told(max_length=11) == known
    assert told() == anew("settings")
    assert told(decode_fn=functools.partial(shift_decode, by=1)) == anew("settings")
    other = functools.partial(shift_decode, by=2)
    assert told(decode_fn=other, bindings=bindings) == anew(
        "configuration and settings"
    )
    assert told(bindings=bindings) == anew("settings")
    engine.model.dtype_policy = keras.DTypePolicy("mixed_bfloat16")
    assert told(bindings=bindings) == anew("settings")
    assert told("two", bindings=bindings) == anew("checkpoint")
    lengths = {"inputs": 4, "targets": 12}  # The last of them is cut.
    changed = told("two", bindings=bindings, feature_lengths=lengths)
    assert changed == anew("settings and examples")

    path = tmp_path / "eval" / "toy" / "dev" / "3" / "metrics.json"
    old = json.loads(path.read_text())
    del old["key"]
    path.write_text(json.dumps(old))
    assert [r["metrics"] for r in read_results(str(tmp_path))] == [old["metrics"]]
    assert told() == (1, "evaluated again, the result is of an earlier version")
    path.write_text('{"task": "toy", "spl')  # as an older version could leave it
    assert read_results(str(tmp_path)) == [] and told() == (1,)


def test_checkpoints_of_one_step_are_told_apart(tmp_path):
    hashes = []
    for name, shift in (("a", 1.0), ("b", 1.0), ("c", 0.0)):
        save(tmp_path / name, 3, shift)
        hashes.append(hash_checkpoint(str(tmp_path / name / "checkpoints" / "3")))
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.parametrize("text", ["", '{"metric": "em", "st', "[]"])
def test_a_damaged_best_json(tmp_path, text):
    save(tmp_path, 5)
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(ValueError, match="best.json is damaged.* --step=1000"):
        score(tmp_path, step="best")


def test_what_cannot_be_written_is_one_line_before_the_work(tmp_path):
    def model():
        raise AssertionError("work was done")

    with pytest.raises(OSError, match="Nothing can be written to --model_dir /proc/"):
        evaluate(Run(model), "/proc/self", [decoded()])
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        evaluate(Run(make_shift), str(tmp_path / "misspelt"), [decoded()])
    assert not list(tmp_path.iterdir())
    save(tmp_path, 3)
    (tmp_path / "eval").write_text("")  # A full disk is seen later.
    with pytest.raises(OSError, match="Results cannot be written to .*/eval/toy/dev/3"):
        evaluate(Run(make_shift), str(tmp_path), [decoded()])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "a/b"])
def test_folders_may_be_called_like_patterns(tmp_path, name):
    folder, engine = str(tmp_path / "lr[1e-3]"), shift_engine()
    evaluation = decoded(name=name)
    evaluation.run(folder, engine, 3)
    metric = f"{name}/toy/dev/em".removeprefix("/")
    best = Best(metric).find(folder, [evaluation], engine.model, 3)
    assert best == (3, 0.6, False)


class Constant(Evaluation):
    """An evaluation with one known result, that counts its predictions."""

    kind = "loss"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.count = 0

    def parts(self):
        return [("toy", "dev")]

    def settings(self):
        return {}

    def hash_examples(self, part):
        return ""

    def batch_function(self, model):
        return model

    def predict(self, part, model, function):
        self.count += 1
        return {}, None

    def metrics(self, part, predictions):
        return {"em": 0.5, "nan": float("nan")}


def run_toy(folder, steps, evaluation):
    toy.train_toy(
        Run(toy.ToyModel),
        folder,
        steps,
        log_period=2,
        evaluations=[evaluation],
        evaluation_bindings={"model": "toy"},
        configuration=lambda: ("", {"rate": 0.01}),
    )


def test_the_table_tells_a_percentage_from_a_share(tmp_path, capsys):
    """One right answer of 100 is 1 %, and not 1.0000, which would be all."""
    texts = [("a", "b")] + [("a", "c")] * 99
    task = toy_task({"dev": texts}, metric_fns=[accuracy, word_metric])
    results = decoded(task).run(str(tmp_path), shift_engine(), 3)
    shown = capsys.readouterr().out.replace("│", " ").split()
    assert shown[shown.index("accuracy") :][:3] == ["accuracy", "(%)", "1.0000"]
    assert shown[shown.index("em") :][:2] == ["em", "0.0100"]
    result = results["toy"]["dev"]
    assert result["metrics"]["accuracy"] == 1 and result["units"] == {"accuracy": "%"}


def test_results_of_training(tmp_path):
    """`eval` knows them; they are in metrics.jsonl and TensorBoard's table."""
    run_toy(tmp_path, 4, Constant(period=4))
    path = tmp_path / "metrics.jsonl"
    whole = path.read_text()
    with path.open("a") as file:  # The files of a run that was killed before it saved.
        file.write(json.dumps({"step": 6, "loss": 9.0}) + '\n{"step": 7, "lo')
    training = Constant(period=4)
    run_toy(tmp_path, 8, training)
    assert training.count == 1  # Only at step 8.
    assert path.read_text().startswith(whole)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = [(line["step"], "loss" in line, "toy/dev/em" in line) for line in lines]
    log, result = (True, False), (False, True)
    assert found == [
        (2, *log), (4, *log), (4, *result), (6, *log), (8, *log), (8, *result)
    ]  # fmt: skip
    assert lines[2] == {"step": 4, "toy/dev/em": 0.5, "toy/dev/nan": None}
    assert lines[3]["loss"] < 9 and lines[3]["steps_per_second"] > 0

    evaluation = Constant()
    (results,) = evaluate(
        Run(toy.ToyModel), str(tmp_path), [evaluation], bindings={"model": "toy"}
    )
    assert evaluation.count == 0 and results["toy"]["dev"]["step"] == 8

    # One file of events for the results of a process, and TensorBoard's own reading.
    folder = tmp_path / "tensorboard" / "train" / "eval/toy/dev"
    assert len(list(folder.iterdir())) == 1
    multiplexer = plugin_event_multiplexer.EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(tmp_path / "tensorboard"))
    multiplexer.Reload()
    provider = data_provider.MultiplexerDataProvider(multiplexer, "")
    board = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    request = context.RequestContext()
    experiment = board.experiment_from_metadata(
        request, "", True, board.hparams_metadata(request, ""), None
    )
    assert [hparam.name for hparam in experiment.hparam_infos] == ["rate"]
    metrics = {(info.name.group, info.name.tag) for info in experiment.metric_infos}
    assert {("", "loss"), ("eval/toy/dev", "eval/em")} <= metrics


@pytest.mark.slow
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


@pytest.mark.slow
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
        toy.train_toy(Run(toy.ToyModel), tmp_path, steps, evaluations=[Watch()])
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
    curves = tmp_path / "tensorboard" / "train" / "eval"
    files = sorted(curves.rglob("*.tfevents.*"))
    folders = [str(file.parent.relative_to(curves)) for file in files]
    assert folders == ["part/toy/dev", "toy/dev"]
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


@pytest.mark.slow
def test_examples_in_tensorboard(tmp_path):
    task = toy_task({"dev": [("ab", "ab"), ("c", "d|e"), ("f", "g")]})
    evaluation = decoded(task, max_examples=2)
    result = evaluation.run(str(tmp_path), shift_engine(0.0), 7)["toy"]["dev"]
    assert (result["metrics"]["em"], result["examples"]) == (0.5, 2)
    texts = []
    for path in (tmp_path / "tensorboard" / "train" / "eval/toy/dev").iterdir():
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


@pytest.mark.slow
def test_the_command_reads_the_configuration_of_the_run(tmp_path, capsys):
    with pytest.raises(configuration.UserError, match="no .*operative_config.gin"):
        run_command("eval", [f"--model_dir={tmp_path}"])

    settings = configuration.read(
        ["models/t5_1_1_tiny.gin", "runs/mini_cogs.gin"], SMALL
    )
    (tmp_path / "operative_config.gin").write_text(settings.text())
    model = part_of(settings, "EncoderDecoder")()
    model.build()
    write_weights(str(tmp_path), model, 2)
    run_command(
        "eval",
        [
            f"--model_dir={tmp_path}",
            "--step=2",
            "--gin.DecodedEvaluation.splits=['test']",
            "--gin.DecodedEvaluation.max_examples=3",
            "--gin.DecodedEvaluation.max_length=4",
            "--gin.evaluate.evaluations=[@DecodedEvaluation(), @a/DecodedEvaluation()]",
            "--gin.a/DecodedEvaluation.max_examples=2",
        ],
    )
    out = capsys.readouterr().out
    assert "mini_cogs at step 2" in out and "a/mini_cogs at step 2" in out
    folder = tmp_path / "eval" / "mini_cogs" / "test" / "2"
    assert json.loads((folder / "metrics.json").read_text())["examples"] == 3
    folder = tmp_path / "eval" / "a" / "mini_cogs" / "test" / "2"
    assert json.loads((folder / "metrics.json").read_text())["examples"] == 2
