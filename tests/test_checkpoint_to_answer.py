"""The page from a published checkpoint to a served answer runs as it is printed."""

import contextlib
import io
import pathlib
import re
import shlex
import subprocess
import sys

import gin
import pytest

from remixer_tf.commands import run_command
from remixer_tf.data.vocabulary_training import train_vocabulary
from tests.tiny_run import TEXTS
from tests.weights import numpy_t5, published

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "guides" / "checkpoint_to_answer.md"
COMMAND = "python -m remixer_tf "


def run(command, monkeypatch):
    """Runs a line of shell; a command of ours in this process, which is quicker."""
    before, _, last = command.rpartition("|")
    if not last.strip().startswith(COMMAND):
        subprocess.run(["bash", "-euc", command], check=True)
        return
    if before:
        text = subprocess.check_output(["bash", "-euc", before])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    last, _, file = last.partition(" > ")
    name, *arguments = shlex.split(last.strip().removeprefix(COMMAND))
    gin.clear_config()
    with contextlib.ExitStack() as stack:
        if file:
            output = stack.enter_context(open(file.strip(), "w"))
            stack.enter_context(contextlib.redirect_stdout(output))
        run_command(name, arguments)


@pytest.mark.slower
def test_every_command(tmp_path, monkeypatch, clear_gin):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "flan-t5-small"
    published.write_hugging_face(folder, numpy_t5.made_up_weights(), **published.NEW)
    train_vocabulary(TEXTS, str(folder / "spiece.model"), model_type="word")
    blocks = re.findall(r"```(sh|python)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh"] * 4 + ["python"]
    shell = "".join(text for kind, text in blocks if kind == "sh")
    commands = re.sub(r"\\\n|(?<=\|)\n", " ", shell).splitlines()
    assert sum(COMMAND in command for command in commands) == 7
    for command in commands:
        run(command, monkeypatch)
    result = subprocess.run(
        [sys.executable, "-c", blocks[-1][1]], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr[-3000:]
    answer, scores = result.stdout.splitlines()
    assert len((tmp_path / "greedy.txt").read_text().splitlines()) == 1
    beams = (tmp_path / "beams.txt").read_text().splitlines()
    assert len(beams) == 3 and all("\t-" in line for line in beams)
    (score,) = (tmp_path / "scores.txt").read_text().splitlines()
    assert float(score.split("\t")[0]) < 0
    assert float(answer.rpartition(" ")[2]) < 0
    assert re.fullmatch(r"\{'yes': .*-\d.*, 'no': .*-\d.*\}", scores), scores
