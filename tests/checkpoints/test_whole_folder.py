"""Folders that appear whole, and what killed processes leave of them."""

import os
import subprocess

import pytest

from remixer_tf.checkpoints.whole_folder import machine, whole_folder

DAY = 24 * 3600


def test_it_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(ValueError), whole_folder(f"{tmp_path}/a/") as folder:
        open(f"{folder}/file", "w").close()
        raise ValueError
    assert not os.listdir(tmp_path)
    with pytest.raises(OSError, match="Cannot write .*/a: .*No space left"):
        with whole_folder(f"{tmp_path}/a"):
            raise OSError(28, "No space left on device")
    with whole_folder(f"{tmp_path}/a") as folder:
        open(f"{folder}/file", "w").close()
        assert not (tmp_path / "a").exists()
    assert os.listdir(tmp_path) == ["a"] and os.listdir(tmp_path / "a") == ["file"]


def test_what_the_killed_left_is_removed_and_no_more(tmp_path):
    """Before, the name had no machine, and nothing removed it."""
    killed = subprocess.Popen(["true"])
    killed.wait()
    for name, age in (
        (f"run.writing-{machine()}-{killed.pid}", 0),
        ("run.writing-00000000-7", 2 * DAY),
        (f"live.writing-{machine()}-{os.getppid()}", 0),
        ("far.writing-00000000-7", 0),
        ("mine.writing-7", 2 * DAY),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "weights").touch()
        for path in (folder / "weights", folder):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age))
    for process in (killed.pid, os.getppid()):
        (tmp_path / f"file_{process}.writing-{machine()}-{process}").touch()
    with whole_folder(f"{tmp_path}/other"):
        pass
    found = sorted(name.partition(".")[0] for name in os.listdir(tmp_path))
    assert found == ["far", f"file_{os.getppid()}", "live", "mine", "other"]
