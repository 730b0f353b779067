"""The notebooks of `examples/` run, in their order, each in a process of its own."""

import json
import pathlib

import nbclient
import nbformat
import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_four():
    assert len(NOTEBOOKS) == 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_are_stored_without_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and not cell["execution_count"] for cell in code)


def lines_of(name, tag):
    """The lines of the one cell with a tag, without blank ones."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    (cell,) = (c for c in notebook.cells if tag in c.metadata.get("tags", []))
    return [line for line in cell.source.splitlines() if line.strip()]


def test_a_toy_remixer_takes_twelve_lines():
    assert len(lines_of("remixer_block", "twelve-lines")) <= 12


def test_a_mixer_takes_forty_lines():
    lines = lines_of("own_mixer", "forty-lines")
    words = [line.split()[0] for line in lines]
    assert len([x for x in words if x not in ("%%writefile", "import", "from")]) <= 40


@pytest.mark.slower
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_run(path, tmp_path, monkeypatch):
    monkeypatch.delenv("T5_FOLDER", raising=False)
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()  # An error of a cell is raised here.
    if path.stem in ("own_layer", "own_mixer"):
        outputs = notebook.cells[-1].outputs
        assert any("image/png" in output.get("data", {}) for output in outputs)
