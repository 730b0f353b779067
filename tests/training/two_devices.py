"""Running a module on two logical devices, which a process asks for at its start."""

import json
import pathlib
import subprocess
import sys


def run_module(name):
    """Runs `python -m name`, and returns what its last line says, as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", name],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
