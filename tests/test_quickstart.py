"""`make quickstart` ends with a page and a command that are there."""

import contextlib
import io
import re
import shlex
import sys

import pytest

from remixer_tf.commands import quickstart, run_command


@pytest.mark.slower
def test_the_last_line_names_a_page_and_a_command(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quickstart, "MODELS", {"Remixer tiny": "remixer_tiny"})
    alone = contextlib.nullcontext()
    monkeypatch.setattr(quickstart, "run_aside", lambda *command, output: alone)
    path = tmp_path / "short.gin"
    path.write_text(
        "include 'runs/quickstart.gin'\nTRAIN_STEPS = 40\nWARMUP_STEPS = 1\n"
        "DecodedEvaluation.max_examples = 4\n"
    )
    monkeypatch.setattr(quickstart, "RUN", str(path))
    quickstart.run(None)
    *lines, opens, command = capfd.readouterr().out.splitlines()
    assert any(line.strip().startswith("answer  ") for line in lines)
    page = re.match(r"Open (\S+): ", opens)[1]
    assert "encoder_matrices" in (tmp_path / page).read_text()

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"Mia slept\n")))
    *_, name, folder = shlex.split(command)
    assert name == "serve"
    run_command("infer", [folder])
    assert len(capfd.readouterr().out.splitlines()) == 1


def test_a_command_that_fails_aside_is_shown(tmp_path, capfd):
    output = str(tmp_path / "log")
    with pytest.raises(SystemExit) as exit_, quickstart.run_aside("no", output=output):
        pass
    assert exit_.value.code == 2
    assert "there is no command 'no'" in capfd.readouterr().err


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
    with pytest.raises(SystemExit):
        quickstart.ask_exported(str(tmp_path), {"steps": 2})
    assert "no model" in capfd.readouterr().err
