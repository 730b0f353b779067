"""Running a module on two logical devices, which a process asks for at its start."""

import fcntl
import json
import os
import pathlib
import subprocess
import sys


def run_module(name, tmp_path_factory):
    """Runs `python -m name`, and returns what its last line says, as JSON.

    Processes that run tests together (pytest-xdist) run it once, and share the line.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # Each worker has its own below.
    with open(folder / f"{name}.json", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        line = file.read()
        if not line:
            line = _last_line(name)
            file.write(line)
    return json.loads(line)


def _last_line(name):
    done = subprocess.run(
        [sys.executable, "-m", name],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]
