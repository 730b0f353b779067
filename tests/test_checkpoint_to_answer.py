"""The page from a published checkpoint to a served answer runs as it is printed."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from remixer_tf.data.vocabulary_training import train_vocabulary
from tests.tiny_run import TEXTS
from tests.weights import numpy_t5, published

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "guides" / "checkpoint_to_answer.md"


@pytest.mark.slow
def test_every_command(tmp_path):
    folder = tmp_path / "flan-t5-small"
    published.write_hugging_face(folder, numpy_t5.made_up_weights(), **published.NEW)
    train_vocabulary(TEXTS, str(folder / "spiece.model"), model_type="word")
    blocks = re.findall(r"```(sh|python)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sh"] * 4 + ["python"]
    shell = "".join(text for kind, text in blocks if kind == "sh")
    environment = {
        **os.environ,
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for command in (
        ["bash", "-euo", "pipefail", "-c", shell],
        [sys.executable, "-c", blocks[-1][1]],
    ):
        result = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
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
