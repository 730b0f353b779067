"""All commands: `python -m remixer_tf COMMAND ...`, or `remixer_tf COMMAND ...`."""

import os
import sys

from remixer_tf import __version__
from remixer_tf.commands import (
    COMMANDS,
    errors_in_one_line,
    load_command,
    run_command,
)


def main():
    """Runs a command, or lists them."""
    # TensorFlow reads it when it is imported, which is later.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
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
