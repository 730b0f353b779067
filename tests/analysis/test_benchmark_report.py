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
