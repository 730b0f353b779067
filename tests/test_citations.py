"""The sections of the papers that files cite hold what the files say.

"Remixers": 2.1 is the block, 3 the experiments. "Pay Attention to MLPs": 2 is the
model, 3 images, 4 masked language models, 4.3 tiny attention.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CITED = re.compile(
    r'"(Remixers|Pay Attention to MLPs)".*?, sections? ([0-9. and]*[0-9])'
)
# Longer titles, broken over lines, as the first gin file has it.
REMIXER = re.compile(r'for NLU", section ([0-9.]*[0-9])')
SECTIONS = {
    "gin/architectures/gmlp.gin": {"2"},
    "gin/architectures/gmlp_mlm.gin": {"2 and 4"},
    "gin/architectures/gmlp_vision.gin": {"3"},
    "gin/architectures/amlp.gin": {"4.3"},
    "gin/architectures/amlp_mlm.gin": {"4.3"},
    "gin/architectures/encoder_only.gin": {"4"},
    "remixer_tf/layers/remixer.py": {"2.1"},
    "remixer_tf/checkpoints/initial.py": {"2.1"},
}


@pytest.mark.parametrize("file", SECTIONS)
def test_files_cite_the_section_of_what_they_hold(file):
    text = (ROOT / file).read_text()
    assert {section for _, section in CITED.findall(text)} == SECTIONS[file]


def test_remixers_gin_file_cites_the_section_of_its_block():
    text = (ROOT / "gin/architectures/remixer.gin").read_text()
    assert REMIXER.findall(text) == ["2.1"]


def test_run_files_cite_the_section_of_the_experiments():
    cited = [
        (file.name, section)
        for file in sorted((ROOT / "gin" / "runs").glob("*.gin"))
        for paper, section in CITED.findall(file.read_text())
        if paper == "Remixers"
    ]
    assert len(cited) == 5
    assert {section for _, section in cited} == {"3"}
