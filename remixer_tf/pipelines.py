"""Apache Beam's pipelines: options of the command line, and errors in one line.

    with pipeline(["--runner=DirectRunner", "--direct_num_workers=2"]) as started:
        started | beam.Create([1, 2]) | beam.Map(print)

The options are Beam's own, and name a runner. Beam is an extra of this package.
"""

import argparse
import contextlib
import glob
import logging
import os
import pathlib
import re
import signal
import tempfile
import threading

from remixer_tf.checkpoints.damage import first_line
from remixer_tf.errors import UserError, library, nearest, quoted_in


def beam_options(arguments):
    """Returns the `PipelineOptions` of Beam's arguments, such as "--runner=...".

    Several workers of the DirectRunner are processes, unless `--direct_running_mode`
    says otherwise. Raises an ImportError without Beam, and a ValueError for an argument
    that is not Beam's.
    """
    with _quiet():
        module = library("apache_beam.options.pipeline_options", "--beam", "beam")
    PipelineOptions = module.PipelineOptions
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for part in PipelineOptions.__subclasses__():
        with contextlib.suppress(argparse.ArgumentError):  # two may share an option
            part._add_argparse_args(parser)
    known = parser._option_string_actions
    for argument in arguments:
        if (name := argument.partition("=")[0]) not in known:
            raise UserError(
                f"{argument!r} is an option neither of this command nor of Apache "
                f"Beam.{nearest(name, known)} Beam's are written --NAME=VALUE."
            )
    defaults = ["--default_sdk_harness_log_level=CRITICAL"]
    if any(argument.startswith("--direct_num_workers=") for argument in arguments):
        defaults.append("--direct_running_mode=multi_processing")
    return PipelineOptions([*defaults, *arguments])


@contextlib.contextmanager
def pipeline(arguments, what):
    """Yields a `beam.Pipeline`, which runs when the block ends.

    An error of a step becomes a ValueError with one line: that of the step if it is
    one, else `what` failed, a str. For `arguments` see `beam_options`.
    """
    options = beam_options(arguments)
    import apache_beam

    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)
    direct = options.view_as(apache_beam.options.pipeline_options.DirectOptions)
    held = contextlib.nullcontext
    if direct.direct_running_mode == "multi_processing":
        held = _held_lines
        # They share the cores.
        cores = len(os.sched_getaffinity(0))
        threads = max(1, cores // (direct.direct_num_workers or cores))
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(threads))
    with tempfile.TemporaryFile() as lines:
        try:
            with (
                held(lines),
                _ended_workers() as ended,
                apache_beam.Pipeline(options=options) as started,
            ):
                yield started
        except KeyboardInterrupt:
            if not ended:
                raise
            raise UserError(
                f"{what} failed: a worker of this machine has ended ({ended[0]}"
                f"{_last_error(lines)}), and the DirectRunner does not start another. "
                "Start the same command again."
            ) from None
        except Exception as error:
            raise UserError(_reason(error, what)) from error


@contextlib.contextmanager
def _held_lines(file):
    """Lets processes that start in the block write their errors to a file.

    Beam's workers write tracebacks. Their last lines reach this process otherwise.
    """
    own = os.dup(2)
    with (
        open(own, "w", buffering=1, errors="backslashreplace") as stream,
        contextlib.redirect_stderr(stream),
    ):
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(own, 2)


def _last_error(file):
    """The last exception in the lines of workers; empty if they raised none."""
    file.seek(0)
    lines = [line.decode(errors="replace").rstrip() for line in file]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception): ", line)]
    return f": {errors[-1]}" if errors else ""


@contextlib.contextmanager
def _ended_workers():
    """Yields a list of errors of worker processes; the first interrupts the block.

    The DirectRunner raises them in threads of its own, and waits forever. A command
    that a script starts with & ignores SIGINT, so SIGUSR1 interrupts.
    """
    import grpc  # late: of Beam's

    ended, before = [], threading.excepthook
    if threading.current_thread() is not threading.main_thread():
        yield ended
        return

    def hook(arguments):
        if isinstance(arguments.exc_value, grpc.RpcError):  # to a worker that ended
            return
        if "Worker subprocess exited" not in str(arguments.exc_value):
            before(arguments)
        elif not ended:
            ended.append(str(arguments.exc_value).lower())
            _end_workers(os.getpid())
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    of_signal = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    threading.excepthook = hook
    try:
        yield ended
    finally:
        if not ended:  # Else Beam's threads repeat the same error later.
            threading.excepthook = before
        signal.signal(signal.SIGUSR1, of_signal)


def _end_workers(process):
    """Ends all workers below a process: the runner would wait for them at the end."""
    for path in glob.glob(f"/proc/{process}/task/*/children"):
        for child in _text(path).split():
            _end_workers(child)
            if "sdk_worker_main" in _text(f"/proc/{child}/cmdline"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)


def _text(path):
    """Returns the text of a file of /proc; none if its process has ended."""
    try:
        return pathlib.Path(path).read_text()
    except OSError:
        return ""


@contextlib.contextmanager
def _quiet():
    """In this block nothing is logged but errors: Beam warns of clouds' libraries."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


def _reason(error, what):
    """The line of a worker's error. A runner hands on its traceback as text."""
    text = re.sub(r" ?\[while running '[^\n]*?'\]", "", str(error))
    if isinstance(error, UserError):
        return text
    if own := quoted_in(text):
        return str(own)
    message = re.split(r"\n(?: {2,}.*\n)+", text)[-1].strip()  # after the last frame
    reason = f"{first_line(message)}." if message else ""
    if "Traceback" not in text:
        reason = f"{type(error).__name__}: {reason}"
    return f"{what} failed: {reason}"
