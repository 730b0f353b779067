"""Runs, caches and exports of earlier versions are read as those versions read them.

`tests/testdata/old_runs/make.py` made them with the code of their commits. The losses,
answers and metrics in `expected.json` are what that code printed then.
"""

import json
import pathlib
import shutil

import gin
import pytest

import remixer_tf as rt
from remixer_tf import configuration
from remixer_tf.commands import run_command
from remixer_tf.errors import UserError

FOLDER = pathlib.Path(__file__).parent / "testdata" / "old_runs"
RUNS = [str(p.parent.relative_to(FOLDER)) for p in FOLDER.glob("*/*/expected.json")]
RUNS.sort()
# The others take the same way.
SLOW = ("33a8a37/pairs_run", "d025ee5/lora")

pytestmark = pytest.mark.usefixtures("clear_gin")


@pytest.fixture
def run(request, tmp_path, monkeypatch):
    """A copy of a run, below the current folder with its tables and its cache."""
    commit, name = request.param.split("/")
    shutil.copytree(FOLDER / commit, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return name, json.loads((tmp_path / name / "expected.json").read_text())


def cases(names):
    return [
        pytest.param(
            name, marks=pytest.mark.slow if name in SLOW else pytest.mark.slower
        )
        for name in names
    ]


@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_the_configuration_of_an_old_run_is_read(run):
    name, _ = run
    configuration.parse_gin([f"{name}/operative_config.gin"], [])
    made = configuration.call("Run")
    assert made.get_task().name in ("words", "tsv_files", "mini_cogs")
    assert made.feature_lengths == {"inputs": 16, "targets": 8}
    assert configuration.call("Schedule").train_steps == 2


@pytest.mark.parametrize("run", cases(RUNS), indirect=True)
def test_an_old_run_answers_evaluates_and_resumes_as_it_did(run, capsys):
    name, expected = run
    loaded = rt.load(name)
    assert loaded.step == 2
    answers = loaded.generate(expected["questions"], max_length=8)
    assert answers == expected["answers"]
    gin.clear_config()
    for export in pathlib.Path(name).glob("safetensors/*"):
        loaded = rt.load(str(export))
        assert loaded.generate(expected["questions"], max_length=8) == answers
        gin.clear_config()

    loss = ["--gin.evaluate.evaluations=[@LossEvaluation()]"]
    loss += ["--gin.LossEvaluation.batch_size=4", "--gin.LossEvaluation.max_examples=8"]
    run_command("eval", [f"--model_dir={name}", *loss])
    for file, metrics in expected["results"].items():
        if "loss" in metrics:
            found = json.loads(pathlib.Path(name, file).read_text())["metrics"]
            assert found["loss"] == pytest.approx(metrics["loss"], rel=1e-5)
    gin.clear_config()

    more = [f"--model_dir={name}", "--gin.Schedule.train_steps=4"]
    if list(pathlib.Path(name).glob("checkpoints/2/data-*")):
        with pytest.raises(UserError, match="An earlier version.*restart_data_at=2"):
            run_command("train", more)
        gin.clear_config()
    # An epoch of a table has two batches, and none is shuffled.
    run_command("train", [*more, "--gin.Checkpointing.restart_data_at=2"])
    lines = pathlib.Path(name, "metrics.jsonl").read_text().splitlines()
    found = {line["step"]: line["loss"] for line in map(json.loads, lines)
             if "loss" in line}  # fmt: skip
    for step in (3, 4) if name != "mini_cogs" else ():
        assert found[step] == pytest.approx(expected["losses"][str(step)], rel=1e-5)
