"""Files of results: their names and numbers, of this version and of earlier ones."""

import json
import math
import shutil

import pytest

from remixer_tf import console
from remixer_tf.evaluation.results import (
    metrics_at,
    print_table,
    read_results,
    write_result,
)


def write(folder, kind, metrics, step=5, **facts):
    path = folder / "eval" / "toy" / "dev" / str(step)
    path.mkdir(parents=True, exist_ok=True)
    result = {"evaluation": "", "task": "toy", "split": "dev", "step": step, **facts}
    (path / f"{kind}.json").write_text(json.dumps({**result, "metrics": metrics}))


def test_accuracies_of_earlier_versions_get_the_names_of_today(tmp_path):
    write(tmp_path, "loss", {"loss": 0.5, "accuracy": 0.88}, target_tokens=9)
    write(tmp_path, "metrics", {"accuracy": 24.0})
    write(tmp_path, "loss", {"loss": 0.7, "accuracy": 0.75}, step=6, images=4)
    folder = str(tmp_path)
    assert metrics_at(folder, 5) == {
        "toy/dev/accuracy": 24.0,
        "toy/dev/loss": 0.5,
        "toy/dev/token_accuracy": 0.88,
    }
    found = {"toy/dev/loss": 0.7, "toy/dev/image_accuracy": 0.75}
    assert metrics_at(folder, 6) == found
    # An evaluation of scores had this name too: neither value is lost.
    write(tmp_path, "score", {"accuracy": 60.0})
    found = metrics_at(folder, 5)
    assert found["toy/dev/accuracy (metrics.json)"] == 24.0
    assert found["toy/dev/accuracy (score.json)"] == 60.0
    assert "toy/dev/accuracy" not in found


def test_a_table_has_whole_names_and_no_markup(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    names = [f"exact_match/type/{'a_very_' * 8}long_name", "f1/[/b]", "f1/[red]"]
    metrics = dict.fromkeys(names, 0.5)
    splits = {split: {"metrics": metrics} for split in ("dev", "test", "gen")}
    print_table("toy", 3, splits)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    rows = [line.split("│") for line in lines]
    first = "".join(row[1].strip() for row in rows if len(row) == 6)
    assert first == "".join(names)


def test_lines_of_json_keep_metrics_of_every_name(capsys, monkeypatch):
    monkeypatch.setitem(console._state, "json", True)
    names = ("message", "level", "time", "file", "fields", "step", "task", "split")
    print_table("toy", 3, {"dev": {"metrics": {name: 0.5 for name in names}}})
    line = json.loads(capsys.readouterr().out)
    free = ("file", "fields")
    assert line.pop("time")
    assert line == {
        "message": "toy dev at step 3",
        "level": "result",
        **{"step": 3, "task": "toy", "split": "dev"},
        **{name if name in free else f"toy/dev/{name}": 0.5 for name in names},
    }


def test_a_folder_that_is_removed_and_made_again_gets_its_curves(tmp_path):
    folder = tmp_path / "run"
    result = {"task": "toy", "split": "dev", "step": 3, "metrics": {"loss": 1.0}}
    for _ in range(2):
        folder.mkdir()
        write_result(str(folder), "loss", result)
        assert len(list((folder / "tensorboard").rglob("*.tfevents.*"))) == 1
        shutil.rmtree(folder)


def test_names_with_the_same_letters_have_curves_of_their_own(tmp_path):
    for name, task, split in (
        ("", "a_b", "dev"),
        ("a", "b", "dev"),
        ("", "a", "b_dev"),
    ):
        names = {"evaluation": name, "task": task, "split": split}
        result = {**names, "step": 3, "metrics": {"loss": 1.0}}
        write_result(str(tmp_path), "loss", result)
    assert len(list((tmp_path / "tensorboard").rglob("*.tfevents.*"))) == 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have(tmp_path, value):
    result = {"task": "toy", "split": "dev", "step": 3}
    metrics = {"perplexity": value, "loss": 2.0}
    write_result(str(tmp_path), "loss", {**result, "metrics": metrics})

    def refuse(constant):
        raise ValueError(constant)

    for path in [*tmp_path.rglob("*.json"), tmp_path / "metrics.jsonl"]:
        json.loads(path.read_text(), parse_constant=refuse)
    (found,) = read_results(str(tmp_path), "loss")
    assert math.isnan(found["metrics"]["perplexity"])
    assert found["metrics"]["loss"] == 2.0
