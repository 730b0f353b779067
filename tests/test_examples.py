"""The notebooks of `examples/` run, in their order, each in a process of its own."""

import json
import pathlib

import nbclient
import nbformat
import pytest

FOLDER = pathlib.Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_three():
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_are_stored_without_outputs(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and not cell["execution_count"] for cell in code)


def test_a_toy_remixer_takes_twelve_lines():
    notebook = nbformat.read(FOLDER / "remixer_block.ipynb", as_version=4)
    (cell,) = (
        cell
        for cell in notebook.cells
        if "twelve-lines" in cell.metadata.get("tags", [])
    )
    assert len([line for line in cell.source.splitlines() if line.strip()]) <= 12


@pytest.mark.slower
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_run(path, tmp_path, monkeypatch):
    monkeypatch.delenv("T5_FOLDER", raising=False)
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()  # An error of a cell is raised here.
    if path.stem == "own_layer":
        outputs = notebook.cells[-1].outputs
        assert any("image/png" in output.get("data", {}) for output in outputs)
