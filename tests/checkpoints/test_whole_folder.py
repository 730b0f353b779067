"""Folders that appear whole, and what killed processes leave of them."""

import os
import subprocess

import numpy as np
import pytest

from remixer_tf.checkpoints.vocabularies import remember_vocabularies
from remixer_tf.checkpoints.whole_folder import machine, whole_folder, write_whole
from remixer_tf.serving.lines import open_output
from remixer_tf.weights.safetensors_files import write_safetensors

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


def test_permissions_are_those_of_the_umask_or_of_the_file_before(tmp_path):
    """safetensors' library makes private files, and a copy was as private as before."""

    def mode(path):
        return os.stat(path).st_mode & 0o777

    source = tmp_path / "private.model"
    source.write_text("pieces")
    os.chmod(source, 0o600)
    vocabulary = {"inputs": {"sha256": "0" * 64, "file": str(source)}}
    before = os.umask(0o027)
    try:
        with whole_folder(f"{tmp_path}/export") as folder:
            write_safetensors(f"{folder}/a.safetensors", {"a": np.zeros(1)})
            os.mkdir(f"{folder}/assets")
            os.close(os.open(f"{folder}/assets/b", os.O_CREAT, 0o600))
        remember_vocabularies(str(tmp_path), vocabulary)
        for name in ("metrics.json", "answers.txt"):
            for permissions in (None, 0o600, 0o664):
                if permissions is not None:
                    os.chmod(tmp_path / name, permissions)
                if name == "metrics.json":
                    write_whole(str(tmp_path / name), "{}")
                else:
                    with open_output(str(tmp_path / name)) as output:
                        output.write(b"yes")
                assert mode(tmp_path / name) == permissions or permissions is None
    finally:
        os.umask(before)
    copy = "vocabularies/00000000-private.model"
    for name in ("export/a.safetensors", "export/assets/b", copy):
        assert mode(tmp_path / name) == 0o640, name
    assert sorted(os.listdir(tmp_path / "export")) == ["a.safetensors", "assets"]
