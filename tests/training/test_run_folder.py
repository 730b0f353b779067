"""A folder has one run at a time, and the dead hold nothing."""

import concurrent.futures
import json
import os
import shutil
import socket
import subprocess
import sys
import threading

import pytest

from remixer_tf.checkpoints.whole_folder import describe
from remixer_tf.training import run_folder
from remixer_tf.training.run_folder import RunLock, check_writable


def write(folder, **holder):
    (folder / "run.lock").write_text(json.dumps(holder))


def test_who_holds_it_is_named_and_it_is_gone_afterwards(tmp_path):
    with RunLock(tmp_path), pytest.raises(OSError) as error, RunLock(tmp_path):
        pass
    (line,) = str(error.value).splitlines()
    for words in (f"Process {os.getpid()} on ", "run.lock", "--model_dir", " s ago"):
        assert words in line
    assert not list(tmp_path.iterdir())
    with RunLock(tmp_path):
        assert (tmp_path / "run.lock").exists()


@pytest.mark.parametrize("how", ["ended", "zombie", "another"])
def test_a_dead_process_of_this_machine_holds_nothing(tmp_path, how):
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    write(tmp_path, **describe(process.pid))
    with pytest.raises(OSError, match=f"Process {process.pid} on"), RunLock(tmp_path):
        pass
    if how == "another":  # The number of the process was given again.
        write(tmp_path, **{**describe(process.pid), "started": "1"})
    process.stdin.close()
    if how == "ended":
        process.wait()
    elif how == "zombie":
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with RunLock(tmp_path):
        assert json.loads((tmp_path / "run.lock").read_text())["pid"] == os.getpid()
    process.wait()


CONTAINER = {"host": "far", "machine": "another", "pid": 7, "started": "1"}


@pytest.mark.parametrize(
    "content",
    [
        '{"host": "far", "pid": 7, "started": "1"}',
        "",
        "[]",
        '{"machine": "a"}',
        # Another container of this host's name, whose processes are not seen here.
        json.dumps(CONTAINER | {"host": socket.gethostname(), "pid": 2**22 - 1}),
    ],
)
def test_another_machine_holds_it_while_it_renews_it(tmp_path, monkeypatch, content):
    path = tmp_path / "run.lock"
    path.write_text(content)
    naps = []

    def renew(seconds):
        naps.append(seconds)
        if len(naps) == 10:
            os.utime(path, (1, 1))

    monkeypatch.setattr(run_folder.time, "sleep", renew)
    holder = json.loads(content or "null")
    known = holder and "pid" in holder
    name = "Process {pid} on {host}".format(**holder) if known else "Another process"
    with pytest.raises(OSError, match=f"^{name} trains in"), RunLock(tmp_path):
        pass
    assert sum(naps) == 10
    with RunLock(tmp_path):  # It has been dead since.
        assert sum(naps) == 10 + run_folder.STALE_SECONDS


def test_who_was_taken_for_dead_ends(tmp_path):
    with RunLock(tmp_path) as lock:
        before = os.stat(tmp_path / "run.lock").st_mtime_ns
        lock._beat()
        lock.check()
        assert os.stat(tmp_path / "run.lock").st_mtime_ns > before
        write(tmp_path, host="far", pid=7, started="1")
        lock._beat()
        with pytest.raises(OSError, match="Process 7 on far has taken"):
            lock.check()
    assert "far" in (tmp_path / "run.lock").read_text()  # It is not ours to remove.


@pytest.mark.parametrize(
    ("remove", "words"),
    [
        (lambda run: (run / "run.lock").unlink(), "the file was removed .*ends. Run"),
        (shutil.rmtree, "the folder was moved .* with the new place as --model_dir"),
    ],
)
def test_a_lock_that_has_gone_says_what_has(tmp_path, remove, words):
    folder = tmp_path / "run"
    folder.mkdir()
    with RunLock(folder) as lock:
        remove(folder)
        lock._beat()
        with pytest.raises(OSError, match=f"no .*run.lock any more: {words}"):
            lock.check()


def test_a_full_disk_leaves_no_empty_files(tmp_path, small_files):
    """With an empty lock the next start would wait whether its holder lives."""
    with small_files(0):
        with pytest.raises(OSError, match="too large"), RunLock(tmp_path):
            pass
        with pytest.raises(OSError, match="Nothing can be written.*too large"):
            check_writable(str(tmp_path))
    assert not os.listdir(tmp_path)


def test_one_host_of_a_run_takes_it(tmp_path):
    with RunLock(tmp_path), RunLock(tmp_path, enabled=False):
        pass


def test_one_of_many_that_start_at_once(tmp_path):
    """Locks of one process exclude each other as those of several do."""
    write(tmp_path, **{**describe(os.getpid()), "started": "1"})
    start, done = threading.Barrier(8), threading.Barrier(8)

    def take(_):
        start.wait()
        try:
            with RunLock(tmp_path):
                done.wait()
                return "taken"
        except OSError:
            done.wait()
            return "refused"

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(take, range(8))) == ["refused"] * 7 + ["taken"]
