"""All commands: `python -m remixer_tf COMMAND ...`, or `remixer_tf COMMAND ...`."""

import atexit
import ctypes
import functools
import gc
import os
import signal
import sys
import threading

import remixer_tf

if getattr(remixer_tf, "__file__", None) is None:
    sys.exit(
        f"error: Python takes the folder {os.path.abspath('remixer_tf')} for the "
        "package. Use `remixer_tf COMMAND` here, or start in another folder."
    )

from remixer_tf import __version__, console
from remixer_tf.commands import (
    COMMANDS,
    PARENT,
    errors_in_one_line,
    load_command,
    run_command,
)
from remixer_tf.imports import import_less

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@functools.cache
def prepare():
    """Sets what a command's start needs, once and before TensorFlow is imported.

    Python looks for no garbage in the first 30 s: imports and traced graphs stay. It
    would take 0.7 to 1.0 s before a first step (`python -m benchmarks.trainer`, 2 cores
    of an AMD EPYC, 2026-11-25). It looks for none at the end either, which would take
    2 s or more after an export (2026-11-27): the process leaves all to the system.
    """
    if parent := os.environ.pop(PARENT, None):
        _end_with(int(parent))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import_less(of_command=True)
    if gc.isenabled():
        gc.disable()
        gc.set_threshold(50_000)
        enable = threading.Timer(30, gc.enable)
        enable.daemon = True
        enable.start()
    atexit.register(gc.freeze)


def _end_with(parent):
    """Has this process end by SIGTERM when the one that started it ends, by any end."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(f"the process {parent}, which started this one, has ended")


def main():
    """Runs a command, or lists them."""
    console.open_streams()
    prepare()
    name, *arguments = sys.argv[1:] or ["--help"]
    with errors_in_one_line():
        if name in ("-h", "--help"):
            print("usage: remixer_tf COMMAND [options]\n")
            for command in COMMANDS:
                first_line = load_command(command).__doc__.splitlines()[0]
                print(f"  {command:16}  {first_line}")
            print("\nremixer_tf COMMAND --help lists a command's options.")
        elif name == "--version":
            print(f"remixer_tf {__version__}")
        else:
            run_command(name, arguments)


if __name__ == "__main__":
    main()
