"""The commands: `python -m remixer_tf COMMAND ...`, a module for each.

A command's module has what it does as its docstring, the first line for the list of
commands, `add_arguments(parser)` and `run(options)`.
"""

import contextlib
import importlib
import re
import sys

from remixer_tf.errors import UserError, nearest, printable

COMMANDS = (
    *("train", "eval", "infer", "score", "export", "import_weights"),
    *("train_vocabulary", "cache", "data_report", "compare", "pictures", "costs"),
    *("report", "lm_eval", "presets", "tasks", "quickstart"),
)
RENAMED = {"inspect": "data_report", "profile": "costs"}

_NO_MEMORY = re.compile("RESOURCE_EXHAUSTED|out of memory|OOM when", re.IGNORECASE)
_NO_DISK = re.compile(
    "no space left|disk quota|file too large|read-only file system|permission denied",
    re.IGNORECASE,
)


def load_command(name):
    """Returns the module of a command.

    Raises:
        UserError: there is none of this name.
    """
    if name in RENAMED:
        raise UserError(f"there is no command {name!r}: it is {RENAMED[name]!r} now.")
    if name not in COMMANDS:
        raise UserError(
            f"there is no command {name!r}.{nearest(name, COMMANDS)} There are: "
            f"{', '.join(COMMANDS)}."
        )
    return importlib.import_module(f"remixer_tf.commands.{name}")


def run_command(name, arguments):
    """Runs a command.

    The arguments are a list such as ["--model_dir=DIR", "--gin.TRAIN_STEPS=100"].

    Raises:
        UserError: there is no such command, or an argument or the configuration is
            wrong.
    """
    from remixer_tf.configuration.command_line import parse_command_line

    command = load_command(name)
    options = parse_command_line(
        arguments, command.__doc__, command.add_arguments, f"remixer_tf {name}"
    )
    command.run(options)


@contextlib.contextmanager
def errors_in_one_line():
    """Shows a `UserError`, or a machine without memory or disk, as one line.

    The exit code is 2 then, and 130 after Ctrl-C. Other exceptions are bugs, and keep
    their traceback.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "Ctrl-C", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        user = isinstance(error, UserError)
        message = error.message if user else _of_machine(error)
        if isinstance(error, ModuleNotFoundError) and error.name == "seqio":
            message = (
                "seqio is not installed: pip leaves it out on Python 3.13, where one "
                "of its dependencies needs a compiler. Run: pip install --no-deps "
                "seqio==0.0.20"
            )
        if message is None:
            raise
        print(f"error: {printable(message)}", file=sys.stderr)
        sys.exit(2)


def _of_machine(error):
    """Returns the message for a machine that lacks memory or disk, else None."""
    # Libraries' errors are found by their text: no library is imported here.
    if what := _line_with(_NO_DISK, error):
        return (
            f"{what}. Make room, or choose a place that can be read and written. "
            "Nothing half written counts."
        )
    what = _line_with(_NO_MEMORY, error)
    if what is None and isinstance(error, MemoryError):
        what = str(error)
    if what is None:
        return None
    return (
        f"out of memory: {what}. Take a smaller batch (BATCH_SIZE) or "
        "shorter lengths. Training also takes less with more Objective.micro_batches, "
        "Run.dtype_policy = 'mixed_bfloat16', or more devices."
    )


def _line_with(pattern, error):
    """Returns the first line of an error's text that has the pattern, else None."""
    lines = (line for line in str(error).splitlines() if pattern.search(line))
    line = next(lines, None)
    return line and re.sub(r"\{\{.*?\}\} ?| \[Op:.*", "", line).rstrip(".")
