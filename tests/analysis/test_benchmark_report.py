"""`python -m remixer_tf report`, on a folder that looks like a run's."""

import json

import pytest

from remixer_tf.commands import run_command
from tests.analysis.test_comparison import write_result


def write_metrics(folder, task, split, step, metrics):
    write_result(folder, "metrics", step, metrics, task=task, split=split)


def test_rows_and_files(tmp_path, capsys):
    write_metrics(tmp_path, "super_glue_boolq_v102", "validation", 3, {"accuracy": 1.0})
    write_metrics(
        tmp_path, "super_glue_boolq_v102", "validation", 4, {"accuracy": 81.25}
    )
    write_metrics(tmp_path, "super_glue_record_v102", "test", 4, {})
    records = [
        {"idx": {"passage": 1, "query": i}, "prediction": text, "target": "<unk>"}
        for i, text in enumerate(["bcd", "São Paulo"])
    ]
    folder = tmp_path / "eval" / "super_glue_record_v102" / "test" / "4"
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "predictions.jsonl").write_text(lines)
    run_command("report", [f"--model_dir={tmp_path}"])
    printed = capsys.readouterr().out
    assert "super_glue validation at step 4\nBoolQ   CB  COPA" in printed
    assert "\n 81.2  -/-     -" in printed  # and no average
    assert "glue test" not in printed and "ANLI" not in printed
    path = tmp_path / "submission" / "4" / "ReCoRD.jsonl"
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"idx": 0, "label": "bcd"},
        {"idx": 1, "label": "São Paulo"},
    ]
    assert str(path) in printed


def test_what_is_not_there(tmp_path):
    with pytest.raises(ValueError, match="no results of DecodedEvaluation"):
        run_command("report", [f"--model_dir={tmp_path}"])
    write_metrics(tmp_path, "super_glue_boolq_v102", "validation", 3, {"accuracy": 1.0})
    with pytest.raises(ValueError, match="of step 5. They are of steps 3"):
        run_command("report", [f"--model_dir={tmp_path}", "--step=5"])


@pytest.mark.parametrize("up", ["", "../eval/a"])
def test_a_strangers_result_leads_nowhere(tmp_path, up):
    names = {"task": "super_glue_boolq_v102", "split": "test"}
    lie = {"evaluation": up or str(tmp_path / "elsewhere"), **names}
    path = tmp_path.joinpath("run", "eval", "a", *names.values(), "4")
    for folder in (path, tmp_path.joinpath("elsewhere", *names.values(), "4")):
        folder.mkdir(parents=True)
        record = {"idx": 0, "prediction": "True", "target": "True"}
        (folder / "predictions.jsonl").write_text(json.dumps(record))
    result = {**lie, "step": 4, "metrics": {"accuracy": 1.0}}
    (path / "metrics.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match="no results of DecodedEvaluation"):
        run_command("report", [f"--model_dir={tmp_path / 'run'}"])
    with pytest.raises(FileNotFoundError, match="There is no folder .*/runn.$"):
        run_command("report", [f"--model_dir={tmp_path / 'runn'}"])
    assert not [*tmp_path.rglob("BoolQ.jsonl")]


@pytest.mark.parametrize("text", [None, "{", "[" * 100_000])
def test_predictions_that_cannot_be_read(tmp_path, text):
    write_metrics(tmp_path, "super_glue_record_v102", "test", 4, {})
    folder = tmp_path / "eval" / "super_glue_record_v102" / "test" / "4"
    if text:
        (folder / "predictions.jsonl").write_text(text)
    with pytest.raises(OSError, match="predictions.jsonl cannot be read: .*--force"):
        run_command("report", [f"--model_dir={tmp_path}"])
