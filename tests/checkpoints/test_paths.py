"""Relative paths of a run's configuration, wherever it is read."""

import pytest

from remixer_tf import configuration
from remixer_tf.checkpoints import paths
from remixer_tf.tasks.tables import table_task

CONFIGURATION = "table_task.files = {'train': 'train.tsv'}\n"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a table and the folder of a run, which say where they belong."""
    (tmp_path / "project" / "runs" / "one").mkdir(parents=True)
    (tmp_path / "project" / "train.tsv").write_text("a\tb\n")
    monkeypatch.chdir(tmp_path / "project")
    settings = configuration.read([], [CONFIGURATION.strip()])
    text = settings.seen_from("runs/one").text()
    (tmp_path / "project" / "runs" / "one" / "operative_config.gin").write_text(text)
    return tmp_path / "project"


def read(run, *bindings):
    options = ["--model_dir", str(run), *bindings]
    options = configuration.parse_command_line(options, "", configuration.add_run)
    return configuration.read_run(options)


@pytest.mark.usefixtures("clear_gin")
def test_they_start_where_it_was_written(project, tmp_path, monkeypatch):
    text = (project / "runs" / "one" / "operative_config.gin").read_text()
    assert str(tmp_path) not in text
    moved = project.rename(tmp_path / "moved")
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    assert paths.locate("train.tsv") == "train.tsv"
    settings = read(moved / "runs" / "one")
    starts = settings.starts
    assert open(paths.locate("train.tsv", starts)).read() == "a\tb\n"
    assert paths.locate("t*.tsv", starts).endswith("t*.tsv") != "t*.tsv"
    files = settings.bound(table_task).arguments()["files"]  # A part gets such paths.
    assert files == {"train": paths.locate("train.tsv", starts)}
    # Paths that this command line names are here. A file in both places is not guessed.
    (other / "new.tsv").write_text("c\td\n")
    assert paths.locate("new.tsv", starts) == "new.tsv"
    (other / "train.tsv").write_text("c\td\n")
    with pytest.raises(ValueError, match="'train.tsv' can mean .*moved.* or .*other"):
        paths.locate("train.tsv", starts)
    # A configuration that is written from this one keeps both.
    kept = paths.starts_seen_from(str(tmp_path / "other" / "run"), starts)
    assert kept == [".", "..", "../../moved/runs/one", "../../moved"]


@pytest.mark.usefixtures("clear_gin")
def test_a_run_that_moves_alone_is_read(project, tmp_path, monkeypatch):
    run = (project / "runs" / "one").rename(tmp_path / "alone")
    monkeypatch.chdir(run)
    settings = read(run)
    assert settings.run == str(run)
    found = paths.locate("train.tsv", settings.starts)
    assert found == "train.tsv"  # opened by who reads examples
    assert configuration.read([], []).run is None
