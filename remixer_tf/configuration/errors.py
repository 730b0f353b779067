"""Errors of a configuration, in one message each, with the nearest valid names."""

import difflib
import dis
import os
import re
import sys
import textwrap

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_NO_MEMORY = re.compile("RESOURCE_EXHAUSTED|out of memory|OOM when", re.IGNORECASE)
_NO_DISK = re.compile(
    "no space left|disk quota|file too large|read-only file system|permission denied",
    re.IGNORECASE,
)


class UserError(Exception):
    """Something the user can mend; shown as one message, without a traceback."""


def run_binary(main):
    """Runs `main(arguments)`; a user's error becomes one message and exit code 2.

    A user's error is a `UserError`, or an exception that a `raise` statement of this
    package made: its message says what to do. So do those of the machine, see
    `of_machine`. Others are bugs and keep their traceback. Ctrl-C is one line too, and
    exit code 130.
    """
    # Read when TensorFlow is imported, which is later: its lines on absent GPUs.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "Ctrl-C", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        message = plain_message(error) if is_users_error(error) else of_machine(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        sys.exit(2)


def of_machine(error):
    """Returns the message for a machine that lacks memory or disk, else None."""
    # Libraries' classes are known by what they say: none is imported here.
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
        "shorter lengths. Training also takes less with more train.micro_batches, "
        "train.dtype_policy = 'mixed_bfloat16', or more devices."
    )


def _line_with(pattern, error):
    """Returns the first line of an error's text that has the pattern, else None."""
    lines = (line for line in str(error).splitlines() if pattern.search(line))
    line = next(lines, None)
    return line and re.sub(r"\{\{.*?\}\} ?| \[Op:.*", "", line).rstrip(".")


def check_on_tensorflow(what):
    """Raises a UserError where Keras runs on a library that cannot do `what`."""
    import keras  # Binaries import it after the command line is read.

    if (backend := keras.backend.backend()) != "tensorflow":
        raise UserError(
            f"{what} needs Keras on TensorFlow, and it runs on {backend}. Unset "
            "KERAS_BACKEND for it: the checkpoint is the same."
        )


def is_users_error(error):
    """Whether the message alone tells the user what to do; see `run_binary`."""
    if isinstance(error, UserError):
        return True
    innermost = error.__traceback__
    while innermost.tb_next:
        innermost = innermost.tb_next
    code = innermost.tb_frame.f_code
    folders = (_PACKAGE, os.path.join(os.path.dirname(_PACKAGE), "tasks"))
    return (
        isinstance(error, (ValueError, OSError, ImportError, ArithmeticError))
        and os.path.abspath(code.co_filename).startswith(
            tuple(f + os.sep for f in folders)
        )
        and code.co_code[innermost.tb_lasti] == dis.opmap["RAISE_VARARGS"]
    )


def plain_message(error):
    """Returns the message without what gin and Keras add to it."""
    added = r"\n  (?:In call to configurable|No values supplied|In file|In bindings)"
    text = re.split(added, str(error))[0]
    # Keras: which layer, the message in bold, all arguments.
    keras = re.match(
        r"Exception encountered when calling .*?\x1b\[1m(.*)\x1b", text, re.S
    )
    return keras[1] if keras else text


def nearest(name, names):
    """Returns ' Nearest: a, b.', or '' if nothing is near."""
    by_lower = {known.lower(): known for known in sorted(names)}
    close = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    return f" Nearest: {', '.join(by_lower[n] for n in close)}." if close else ""


def unknown_parameter(name, parameter, parameters):
    """Returns the message for a parameter that a configurable does not have."""
    message = f"{name} has no parameter {parameter!r}.{nearest(parameter, parameters)}"
    return f"{message} It has: {', '.join(parameters)}." if parameters else message


def explain(error, parameters):
    """Returns one message for an error of gin's that a user can mend, else None.

    gin raises the same types for all of them, so that its messages tell them apart.

    Args:
        error: an exception.
        parameters: dict of the configurables' names to the lists of their parameters.
    """
    text = plain_message(error)
    where = re.search(r'\n  In (file ".*", line \d+)', str(error))
    where = f" (in {where[1]})" if where else ""

    if match := re.search(
        r"No configurable matching (?:reference )?'@?([^'()]*)", text
    ):
        name = match[1]
        return (
            f"gin knows no {name!r}{where}.{nearest(name, parameters)} Names from a "
            "module of yours need an `import` line in the gin file."
        )
    if match := re.search(r"Ambiguous selector '(.*?)', matches \[(.*?)\]", text):
        return (
            f"several things are called {match[1]!r}{where}: {match[2]}. Write the "
            "whole name of one."
        )
    if match := re.search(r"No module named '(.*?)'", text):
        return (
            f"there is no module {match[1]!r}{where}. Modules of yours are looked "
            "for in the current folder and on Python's path (PYTHONPATH)."
        )
    if match := re.search(
        r"Configurable '(.*)' doesn't have a parameter named '(.*)'", text
    ):
        name = match[1].rpartition(".")[2]
        return unknown_parameter(name, match[2], parameters.get(name, [])) + where
    if match := re.search(r"No bindings specified for '(.*)/gin.macro'", text):
        macros = re.findall(r"^(\w+) = ", text, re.MULTILINE)  # of the whole config
        return (
            f"the macro {match[1]} is used but not set.{nearest(match[1], macros)} "
            f"{_how_to_set(match[1])}"
        )
    if match := re.search(r"(\S+) set to `%gin.REQUIRED`", text):
        name = re.sub(r"/(gin\.)?macro\.value$", "", match[1])
        return f"{name} is required and not set. {_how_to_set(name)}"
    if match := re.search(
        r"(\w+)(?:\.__init__)?\(\) missing \d+ required .*?: (.*)", text
    ):
        name = match[1]
        if name in parameters:
            return (
                f"{name} needs a value for {match[2]}. Set it in a gin file, or with "
                f"--gin.{name}.PARAMETER=VALUE. (A run needs a model file and a run "
                "file, such as --gin_file=models/t5_1_1_tiny.gin "
                "--gin_file=runs/mini_cogs.gin.)"
            )
    return None


def missing_file(path, folders):
    """Returns the message for a gin file that is in none of the folders."""
    searched = ", ".join(os.path.abspath(folder) for folder in folders)
    return (
        f"there is no gin file {path!r}.{nearest(path, _gin_files(folders))} "
        f"Searched: {searched}."
    )


def _how_to_set(name):
    return f"Set it with --gin.{name}=VALUE, or with `{name} = VALUE` in a gin file."


def explain_syntax(error, binding=None):
    """Returns the message for gin text that does not parse.

    Args:
        error: a SyntaxError, or a `tokenize.TokenError` (an open bracket).
        binding: the binding of the command line that was read; None for a file.
    """
    reason = textwrap.shorten(str(error.args[0]).rstrip("."), 200)
    if "malformed node" in reason:
        reason = "expected a Python literal, a %MACRO or a @reference"
    if binding is not None:
        name, _, value = binding.partition(" = ")
        message = f"cannot read --gin.{name}={value}: {reason}."
        if re.fullmatch(r"[\w./-]+", value):
            message += (
                f" A string needs quotes of its own: --gin.{name}=\"'{value}'\". What "
                f"a class makes is written --gin.{name}=@{value}()"
            )
        return message
    if isinstance(error, SyntaxError) and isinstance(error.args[1], tuple):
        file, line, _, source = error.args[1]
        source = textwrap.shorten(source or "", 200)
        return f"cannot read {file}, line {line}, `{source}`: {reason}."
    return f"cannot read a gin file: {reason}. Is a bracket or quote not closed?"


def _gin_files(folders):
    """Returns paths of gin files, as the search path lets one name them."""
    files = set()
    for folder in folders:
        root = folder or os.curdir
        for path, below, names in os.walk(root):
            below[:] = [name for name in below if not name.startswith(".")]
            relative = os.path.relpath(path, root)
            if relative.count(os.sep) >= 2:
                below.clear()
            files |= {
                os.path.normpath(os.path.join(relative, name))
                for name in names
                if name.endswith(".gin")
            }
    return files
