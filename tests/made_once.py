"""Files and runs that all tests share, and outputs of modules in their own process."""

import fcntl
import json
import os
import pathlib
import subprocess
import sys


def run_module(name, tmp_path_factory):
    """Runs `python -m name`, and returns what its last line says, as JSON.

    Two logical devices, for instance, a process asks for at its start.
    """
    path = made_once(
        f"{name}.json", lambda path: path.write_text(_last_line(name)), tmp_path_factory
    )
    return json.loads(path.read_text())


def made_once(name, make, tmp_path_factory):
    """Returns the path of a file or folder that `make(path)` has made.

    Processes that run tests together (pytest-xdist) make it once, and share it. After a
    failure it is not tried again: each test says why at once.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # Each worker has its own below.
    with open(folder / f"{name}.lock", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        said = file.read()
        if not said:
            try:
                make(folder / name)
            except BaseException as error:
                file.write(f"{name} could not be made: {error}")
                raise
            file.write("made")
        elif said != "made":
            raise AssertionError(said)
    return folder / name


def _last_line(name):
    done = subprocess.run(
        [sys.executable, "-m", name],
        cwd=pathlib.Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]
