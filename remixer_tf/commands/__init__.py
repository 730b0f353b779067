"""The commands: `python -m remixer_tf COMMAND ...`, a module for each.

The docstring of a command's module is its help; its first line stands in the list of
commands. The module has `add_arguments(parser)` and `run(options)`.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import linecache
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import traceback
from types import MappingProxyType

from remixer_tf import console
from remixer_tf.errors import (
    StorageError,
    UserError,
    nearest,
    printable,
    quoted,
    too_old,
)

COMMANDS = (
    *("train", "sweep", "eval", "infer", "score", "serve", "export"),
    *("import_weights", "train_vocabulary", "cache", "data_report", "compare"),
    *("pictures", "costs", "report", "lm_eval", "presets", "tasks", "quickstart"),
)
# In the environment of a process that ends with its parent: the parent's number.
PARENT = "REMIXER_TF_PARENT"
RENAMED = {"inspect": "data_report", "profile": "costs"}

_OF_KERAS = "Exception encountered when calling"  # how its message begins
_LONGEST = 1000  # characters of a library's error
_WAIT = 10  # seconds after an error, see `_end_soon`
# Libraries' errors are found by their text: no library is imported here.
_NO_MEMORY = "RESOURCE_EXHAUSTED|out of memory|OOM when"
_NO_WORKER = (
    "collective ops is aborted|error reported from /job:|remote target /job:|"
    r"gloo \S+ failed|coordination ?service"  # JAX's
)
_NO_TEMPORARY = "no usable temporary directory"  # TensorFlow's import needs one, too
_NO_DISK = (
    "no space left|disk quota|file too large|read-only file system|permission denied"
    "|is a directory"
)


def load_command(name):
    """Returns the module of a command; raises a UserError if there is none."""
    if name in RENAMED:
        raise UserError(f"there is no command {name!r}: it is {RENAMED[name]!r} now.")
    if name not in COMMANDS:
        raise UserError(
            f"there is no command {name!r}.{nearest(name, COMMANDS)} There are: "
            f"{', '.join(COMMANDS)}."
        )
    return importlib.import_module(f"remixer_tf.commands.{name}")


def run_command(name, arguments):
    """Runs a command with arguments such as ["--model_dir=DIR"].

    Raises a UserError if the command, an argument or the configuration is wrong.
    """
    # A mistake in the options is shown as they say, too.
    in_json = "--log=json" in " ".join(arguments).replace("--log json", "--log=json")
    console.configure("--quiet" in arguments, "json" if in_json else "text")
    from remixer_tf.command_line import parse_command_line

    command = load_command(name)

    def add_arguments(parser):
        command.add_arguments(parser)
        console.add_arguments(parser)

    options = parse_command_line(
        arguments, command.__doc__, add_arguments, f"remixer_tf {name}"
    )
    console.configure(options.quiet, options.log)
    command.run(options)


def start_command(arguments, output):
    """Starts a command in another process, and returns its `subprocess.Popen`.

    Its output is appended to the file `output`. Ctrl-C does not reach it, since its
    session is its own, and it ends with this process.
    """
    with open(output, "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "remixer_tf", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, PARENT: str(os.getpid())},
        )


@contextlib.contextmanager
def errors_in_one_line():
    """Shows a `UserError`, or a lack of memory, disk or a worker, as one line.

    So it does an exception that comes through a module of the user's own. The exit code
    is 2 then, and 130 after Ctrl-C. Other exceptions are bugs, and keep their
    traceback.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # Nobody reads the output any more.
        console.leave_out(sys.stdout)
        sys.exit(141)
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "Ctrl-C", file=console.Lasting(sys.stderr))
        _end_soon(130, _WAIT)
        sys.exit(130)
    except Exception as error:
        error = quoted(error) or error
        user = isinstance(error, UserError)
        message = str(error) if user else too_old(error) or _of_machine(error)
        message = message or _of_own_code(error)
        if isinstance(error, ModuleNotFoundError) and error.name == "seqio":
            message = (
                "seqio is not installed: pip leaves it out on Python 3.13, where one "
                "of its dependencies needs a compiler. Run: pip install --no-deps "
                "seqio==0.0.20"
            )
        if isinstance(error, UnicodeEncodeError) and "surrogates" in error.reason:
            message = (
                f"{error.object!r:.200} is not UTF-8, and TensorFlow opens no such "
                "path. Rename it, or make a link to it."
            )
        if message is None:
            _end_soon(1, _WAIT)
            raise
        console.say(printable(message), "error")
        died = not user and _line_with(_NO_WORKER, error)
        _end_soon(2, wait=0 if died else _WAIT)
        sys.exit(2)


def _end_soon(code, wait):
    """After an error: ends this process in some seconds, if JAX has connected several.

    Others that end by the error too come in that time. When Python exits, JAX would
    wait for all of them for a minute, and then abort with a stack of C++.
    """
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return
    sys.stdout.flush()
    end = threading.Timer(wait, os._exit, [code])
    end.daemon = True
    end.start()


def _of_own_code(error):
    """Returns the message for an exception in the user's own code, else None.

    It names the innermost line that is neither this package's nor a library's, and the
    layer whose method it is.
    """
    # The first are `errors_in_one_line` and its block.
    frames = list(traceback.walk_tb(error.__traceback__))[2:]
    own = [frame for frame in frames if _is_own(frame[0].f_code.co_filename)]
    if not own:
        return None
    frame, line = own[-1]
    file, function = frame.f_code.co_filename, frame.f_code.co_name
    place = f"{file}, line {line}, in {function}"
    path = getattr(frame.f_locals.get("self"), "path", None)
    if isinstance(path, str):
        place += f" of layer '{path}'"
    code = linecache.getline(file, line).strip()
    error = _as_raised(error)
    text = " ".join(str(error).split())
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} ..."
    return f"{place}: `{code}` raised {type(error).__name__}: {text}".rstrip(": ")


def _as_raised(error):
    """The exception that Keras raised anew, with the arguments of each call.

    Keras makes one of the same class from a text, where it can: it changes the text of
    a KeyError, and loses the file of an OSError.
    """
    while _OF_KERAS in str(error) and error.__context__ is not None:
        error = error.__context__
    return error


def _is_own(file):
    """Whether a file of code is a user's own."""
    paths = sysconfig.get_paths()
    installed = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    installed.append(os.path.dirname(os.path.dirname(__file__)))
    file = os.path.realpath(file)
    places = [os.path.realpath(folder) + os.sep for folder in installed]
    return os.path.isfile(file) and not file.startswith(tuple(places))


def _of_machine(error):
    """Returns the message for a lack of memory, disk or another worker, else None."""
    if what := _line_with(_NO_WORKER, error):
        return (
            f"another worker has ended: {what.rstrip(':')}. Its own output says why. "
            "Start all of them again with the same command: they resume from the last "
            "checkpoint."
        )
    if what := _line_with(_NO_TEMPORARY, error):
        return f"{what}. Set TMPDIR to a folder that can be written."
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
    lines = str(error).splitlines()
    line = next((s for s in lines if re.search(pattern, s, re.IGNORECASE)), None)
    return line and re.sub(r"\{\{.*?\}\} ?| \[Op:.*", "", line).rstrip(".")


def add_number(parser, name, help, default=None, least=1):
    """Adds an option of an int that is at least `least`; the help names its default."""

    def number(text):
        if int(text) < least:
            message = f"must be at least {least}. Received: {text}"
            raise argparse.ArgumentTypeError(message)
        return int(text)

    help += "" if default is None else f"; default: {default}"
    parser.add_argument(name, type=number, default=default, metavar="N", help=help)


def add_on_long(parser):
    """Adds the option `on_long`, "warn" or "raise"."""
    help = "lines longer than the model reads are cut and counted (warn), or an error"
    choices = ("warn", "raise")
    parser.add_argument("--on_long", choices=choices, default="warn", help=help)


def add_beam(parser, what):
    """Adds the option `beam`; `beam_arguments` are then the options of Apache Beam."""
    help = (
        f"{what} by Apache Beam, whose own options follow, such as "
        "--runner=DirectRunner --direct_num_workers=2"
    )
    parser.add_argument("--beam", action="store_true", help=help)


def add_rows(parser, targets=False):
    """Adds the options of a command that answers the rows of tables by Apache Beam."""
    add_beam(
        parser,
        "answer each row of a table or of several files (--input='part-*.jsonl'), of "
        ".txt files each line, into the folder --output,",
    )
    what = "text of a row with --beam, such as 'premise: {premise}'; default: that of "
    what += "the run's table_task, else the column"
    for name in ("inputs", "targets")[: 1 + targets]:
        help = f"{what} {name}"
        parser.add_argument(f"--{name}", metavar="TEXT", help=help)
    help = "rows of a file of answers at most, with --beam (10000)"
    add_number(parser, "--shard_rows", help)


def check_rows(options):
    """Raises a UserError for options that need --beam, or that --beam needs."""
    given = {x: getattr(options, x, None) for x in ("inputs", "targets", "shard_rows")}
    names = [name for name, value in given.items() if value is not None]
    if not options.beam and names:
        raise UserError(f"--{names[0]} is for the rows of a table: add --beam.")
    if options.beam and "-" in (options.input or "-", options.output):
        raise UserError(
            "--beam reads files and writes a folder: give --input='part-*.jsonl' and "
            "--output=DIR."
        )


def answer_rows(options, settings, kind, columns, load):
    """Writes the answers to the rows of tables; shows their numbers.

    Args:
        options: those of `add_rows`, and of a run.
        settings: the `Configuration` of the run. Its `table_task` may have texts of
            rows.
        kind: str, the start of the files' names.
        columns: names of the answers' columns.
        load: see `answer_parts`.
    """
    from remixer_tf.checkpoints import reading
    from remixer_tf.checkpoints.checksums import written_checksums
    from remixer_tf.checkpoints.paths import locate
    from remixer_tf.pipelines import beam_options
    from remixer_tf.run import Run
    from remixer_tf.serving.table_rows import TableJob
    from remixer_tf.tasks.opening import plain_name
    from remixer_tf.training.run_folder import RunLock, folder_of_run

    beam_options(options.beam_arguments)  # Mistakes first.
    weights = options.model_dir
    checkpoints = reading.checkpoint_directory(options.model_dir)
    if reading.available_steps(checkpoints):
        # Training may go on, and all workers read one checkpoint.
        options.step = reading.choose_step(options.model_dir, options.step)
        weights = reading.checkpoint_path(checkpoints, options.step)
    task = settings.call(Run).get_task()
    of_task = getattr(getattr(task, "source", None), "settings", None) or {}
    if plain_name(options.input).endswith(".txt"):
        of_task = {}  # Lines are texts already.
    templates = [
        own if own is not None else of_task.get(name) or f"{{{name}}}"
        for name in ("inputs", "targets")
        for own in [getattr(options, name, None)]
        if hasattr(options, name)
    ]
    read = {name: of_task[name] for name in ("header", "columns") if name in of_task}
    asked = {"model_dir": options.model_dir, "step": options.step}
    asked |= {"on_long": options.on_long, "scores": "scores" in columns}
    asked["configuration"] = _digest(settings.text(defaults=False))
    asked["weights"] = _digest(json.dumps(written_checksums(weights), sort_keys=True))
    rows, output = options.shard_rows or 10_000, options.output
    with (
        folder_of_run(output, "--output"),
        RunLock(output, does="answers rows", option="--output"),
    ):
        job = TableJob(
            locate(options.input), output, templates, kind, rows, asked, columns, read
        )
        from remixer_tf.serving.beam_rows import answer_parts

        answer_parts(job, load, options.beam_arguments)
        found = job.finish()
    numbers = ", ".join(f"{number:,} {name}" for name, number in found.items())
    console.say(f"{output}: {numbers}", "result", fields=found)


def _digest(text):
    """Returns the first 16 hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def add_pattern(parser, example):
    """Adds the argument of a command that lists names: `pattern`, "*" for all."""
    help = f"names to list, with * for any letters: '{example}'"
    parser.add_argument("pattern", nargs="?", default="*", metavar="PATTERN", help=help)


def add_output(parser, help="file to write"):
    """Adds the option `output`, "-" for standard output."""
    help += "; standard output if not given, or '-'"
    parser.add_argument("--output", default="-", metavar="FILE", help=help)


def add_table(parser):
    """Adds the options of a command that writes tables: `format` and `output`."""
    from remixer_tf.tables import FORMATS

    help = "format of the tables (text)"
    parser.add_argument("--format", choices=FORMATS, default="text", help=help)
    add_output(parser)


def add_contest(parser):
    """Adds the options of `write_runs`: `metric` and `plot`, and those of a table."""
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="show one table of this metric, such as cogs/test/loss: mean, deviation "
        "and 95%% bootstrap interval over seeds, differences from the first column's "
        "by seed, parameters, FLOPs, speed, memory",
    )
    help = "picture of --metric over FLOPs, such as plot.png"
    parser.add_argument("--plot", metavar="FILE", help=help)
    add_table(parser)


def check_once(paths, places=None, what="run"):
    """Raises a UserError if two of several paths, perhaps by a link, are one.

    `places` are where they are, a list; None for the paths.
    """
    given = {}
    for path, place in zip(paths, places or paths, strict=True):
        real = os.path.realpath(place)
        if real in given:
            raise UserError(
                f"{given[real]} and {path} are one {what}. Name each {what} once."
            )
        given[real] = path


def check_output(options, name="output"):
    """Raises an error if the file of an option cannot be written.

    A command says so before hours of work.
    """
    path = getattr(options, name)
    folder = os.path.dirname(path) or "."
    is_device = os.path.exists(path) and not os.path.isfile(path)
    reason = None
    if os.path.isdir(path):
        reason = "It is a folder. Name a file in it."
    elif path == "-" or "://" in path or is_device:
        return
    elif not os.path.isdir(folder):
        reason = f"There is no folder {folder!r}. Make it first."
    else:
        try:
            tempfile.TemporaryFile(dir=folder).close()
        except OSError as error:
            reason = f"{error.strerror}. Name a file in another folder."
    if reason:
        raise StorageError(f"--{name}={path} cannot be written: {reason}")


def check_contest(options):
    """Raises an error for --plot without --metric, or files that cannot be written.

    They are two files.
    """
    if options.metric == "":
        raise UserError("--metric is empty. Name a metric, such as cogs/test/loss.")
    check_output(options)
    if not options.plot:
        return
    if not options.metric:
        raise UserError("--plot draws a metric. Name it with --metric.")
    from matplotlib.figure import Figure  # late: slow to import

    ending = os.path.splitext(options.plot)[1][1:].lower()
    known = sorted(Figure().canvas.get_supported_filetypes())
    if ending not in known:
        raise UserError(
            f"--plot={options.plot}: the name ends in none of {', '.join(known)}, the "
            "formats of pictures."
        )
    check_output(options, "plot")
    if os.path.realpath(options.output) == os.path.realpath(options.plot):
        raise UserError(
            f"--output={options.output} and --plot={options.plot} are one file. The "
            "table and the picture need a file each."
        )


def write_runs(runs, groups, options, file, failed=MappingProxyType({})):
    """Writes the tables of runs that `compare` and `sweep` print.

    The arguments are those of `remixer_tf.analysis.comparison.write_comparison`.
    """
    from remixer_tf.analysis import comparison, contest

    if not options.metric:
        comparison.write_comparison(runs, groups, options.format, file, failed)
        return
    found = contest.contestants(runs, groups, options.metric)
    if options.plot:
        contest.draw_contest(*found, options.metric, options.plot)
    lacks = contest.lacking(runs, groups) | contest.unequal_steps(found[0])
    contest.write_contest(*found, options.metric, options.format, file, failed, lacks)


def sizes(text):
    """The type of an option "M,N": returns a list of int."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"expected M,N. Received: {text!r}")
    return [int(size) for size in text.split(",")]


def add_list(parser, name, metavar, help):
    """Adds an option that may be repeated: a list, empty unless given."""
    parser.add_argument(name, action="append", default=[], metavar=metavar, help=help)
