"""Runs, caches and exports of earlier versions are read as those versions read them.

`tests/testdata/old_runs/make.py` made them with the code of their commits. The losses,
answers and metrics in `expected.json` are what that code printed then.
"""

import json
import pathlib
import shutil

import gin
import numpy as np
import pytest

import remixer_tf as rt
from remixer_tf import configuration
from remixer_tf.commands import run_command
from remixer_tf.errors import UserError
from tests.settings import part_of
from tests.testdata.old_runs.make import ask_saved_model, ask_tokens

FOLDER = pathlib.Path(__file__).parent / "testdata" / "old_runs"
RUNS = [
    "016f819/mini_cogs",
    "33a8a37/words",
    "33a8a37/pairs_run",
    "4f0f1ec/cached",
    "cc14ff1/cached",
    "16936f2/gmlp",
    "9844387/words",
    "d025ee5/lora",
    "7c01e1d/cached",
]
QUICK = ("7c01e1d/cached",)
EXPORTS = [
    "016f819/saved_model",
    *(f"33a8a37/{kind}" for kind in ("saved_model", "huggingface", "litert", "onnx")),
    "9844387/keras",
    *(f"d025ee5/{kind}" for kind in ("adapters", "safetensors")),
    *(f"7c01e1d/{kind}" for kind in ("saved_model", "safetensors", "huggingface")),
    *(f"7c01e1d/{kind}" for kind in ("litert", "onnx", "keras")),
]

pytestmark = pytest.mark.usefixtures("clear_gin")


def unpack(commit, monkeypatch, tmp_path):
    """Makes a copy of what a commit wrote, and goes there."""
    shutil.unpack_archive(FOLDER / f"{commit}.tar.xz", tmp_path)
    monkeypatch.chdir(tmp_path)


def expected_of(folder):
    return json.loads(pathlib.Path(folder, "expected.json").read_text())


@pytest.fixture
def run(request, tmp_path, monkeypatch):
    """The name of a run in the current folder, with its tables and its cache."""
    commit, name = request.param.split("/")
    unpack(commit, monkeypatch, tmp_path)
    return name


@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_the_configuration_of_an_old_run_is_read(run):
    settings = configuration.read([f"{run}/operative_config.gin"], [])
    made = part_of(settings, "Run")()
    assert made.get_task().name in ("words", "tsv_files", "mini_cogs")
    assert made.feature_lengths == {"inputs": 16, "targets": 8}
    assert part_of(settings, "Schedule")().train_steps == 2


@pytest.mark.parametrize("run", ["cc14ff1/gmlp"], indirect=True)
def test_a_run_of_gmlp_whose_gates_were_no_layers_is_refused(run):
    with pytest.raises(UserError, match="of gMLP, aMLP or sMLP .* before 2026-11-25"):
        rt.load(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [pytest.param(r, marks=[pytest.mark.slower] * (r not in QUICK)) for r in RUNS],
    indirect=True,
)
def test_an_old_run_answers_evaluates_and_resumes_as_it_did(run):
    expected = expected_of(run)
    loaded = rt.load(run)
    assert loaded.step == 2
    answers = loaded.generate(expected["questions"], max_length=8)
    assert answers == expected["answers"]
    gin.clear_config()

    loss = ["--gin.evaluate.evaluations=[@LossEvaluation()]"]
    loss += ["--gin.LossEvaluation.batch_size=4", "--gin.LossEvaluation.max_examples=8"]
    run_command("eval", [f"--model_dir={run}", *loss])
    for file, metrics in expected["results"].items():
        if "loss" in metrics:
            found = json.loads(pathlib.Path(run, file).read_text())["metrics"]
            assert found["loss"] == pytest.approx(metrics["loss"], rel=1e-5)
            assert "token_accuracy" in found  # its name since 2026-11-26
    gin.clear_config()

    more = [f"--model_dir={run}", "--gin.Schedule.train_steps=4"]
    if list(pathlib.Path(run).glob("checkpoints/2/data-*")):
        with pytest.raises(UserError, match="An earlier version.*restart_data_at=2"):
            run_command("train", more)
        gin.clear_config()
    # An epoch of a table has two batches, and none is shuffled. mini_cogs is shuffled,
    # and its order is another one since 2026-11-26.
    run_command("train", [*more, "--gin.Checkpointing.restart_data_at=2"])
    lines = pathlib.Path(run, "metrics.jsonl").read_text().splitlines()
    found = {line["step"]: line["loss"] for line in map(json.loads, lines)
             if "loss" in line}  # fmt: skip
    for step in (3, 4) if run != "mini_cogs" else ():
        assert found[step] == pytest.approx(expected["losses"][str(step)], rel=1e-5)
    first = pathlib.Path(run, "operative_config.gin").read_text().splitlines()[0]
    assert first == f"# Written by remixer_tf {rt.__version__}."


@pytest.mark.slow
@pytest.mark.parametrize(
    "export",
    [
        # Each kind by the first commit that wrote it.
        pytest.param(x, marks=[pytest.mark.slower] * x.startswith("7c01e1d"))
        for x in EXPORTS
    ],
)
def test_an_old_export_answers_as_it_did(export, tmp_path, monkeypatch):
    """A SavedModel, LiteRT and ONNX need no code of this package.

    They are asked to see that TensorFlow and the runtimes of today still read them.
    """
    commit, kind = export.split("/")
    unpack(commit, monkeypatch, tmp_path)
    folder, expected = f"exports/{kind}", expected_of("exports")[kind]
    if kind == "keras":
        check_keras(folder, expected)
    elif kind in ("saved_model", "litert", "onnx"):
        answers = (ask_saved_model if kind == "saved_model" else ask_tokens)(folder)
        for name, value in expected.items():
            if name in ("score", "scores"):
                value = pytest.approx(value, abs=1e-4)
            assert answers[name] == value
    else:
        run = expected["run"]
        if kind == "adapters":
            alone = ["Run.adapters = None"]  # the weights that they started from
            loaded = rt.load(run, step=0, bindings=alone, adapters=folder)
        else:
            loaded = rt.load(folder)
        expected = expected_of(run)
        found = loaded.generate(expected["questions"], max_length=8)
        assert found == expected["answers"]


def check_keras(folder, expected):
    """Loads a .keras file, and compares predictions and two epochs of training."""
    import keras

    import remixer_tf.models
    import remixer_tf.objectives.losses
    import remixer_tf.optimizers  # noqa: F401

    batch = {name: np.array(x, "int32") for name, x in expected["batch"].items()}
    model = keras.saving.load_model(f"{folder}/model.keras")
    logits = model.predict(batch, verbose=0)
    np.testing.assert_allclose(logits, expected["logits"], atol=1e-5)
    losses = model.fit(batch, epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, expected["losses"], rtol=1e-4)
