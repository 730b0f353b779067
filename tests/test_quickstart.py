"""`make quickstart` prints the output of the process that asks the exported model."""

import subprocess

import pytest

from remixer_tf.commands import quickstart


def test_the_answer_comes_without_tensorflows_lines(tmp_path, monkeypatch, capfd):
    (tmp_path / "export/2").mkdir(parents=True)
    folder = tmp_path / "eval" / quickstart.TASK / "test/2"
    folder.mkdir(parents=True)
    (folder / "predictions.jsonl").write_text('{"input": "a", "target": "b"}\n')
    code = "import sys; print('I0000 cudart', file=sys.stderr); print('b')"
    monkeypatch.setattr(quickstart, "ASK", code)
    quickstart.ask_exported(str(tmp_path), {"steps": 2})
    captured = capfd.readouterr()
    assert "answer    b\n" in captured.out and not captured.err

    monkeypatch.setattr(quickstart, "ASK", "raise SystemExit('no model')")
    with pytest.raises(subprocess.CalledProcessError):
        quickstart.ask_exported(str(tmp_path), {"steps": 2})
    assert "no model" in capfd.readouterr().err
