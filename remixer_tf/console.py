"""Lines of the log: text, JSON, or none."""

import contextlib
import datetime
import io
import json
import logging
import math
import os
import sys

KEYS = ("time", "level", "message")  # of each line of JSON
_state = {"quiet": False, "json": False}


def open_streams():
    """Opens /dev/null in place of standard streams that are closed.

    Otherwise the next file that is opened would get their number, and with it what
    libraries write to standard error. Paths are printed whether they are UTF-8 or not.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the number
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")


class Lasting:
    """A stream for lines of the log: what nobody reads does not stop the work.

    If a line cannot be written, since the terminal or the reader of a pipe has gone,
    later ones are left out.
    """

    def __init__(self, stream):
        self._stream = stream

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def write(self, text):
        with self._lasting():
            return self._stream.write(text)

    def flush(self):
        with self._lasting():
            self._stream.flush()

    @contextlib.contextmanager
    def _lasting(self):
        try:
            yield
        except OSError as error:
            leave_out(self._stream)
            if self._stream.fileno() == 1:
                what = "cannot be written, and later lines of it are left out"
                message = f"standard output {what}: {error.strerror}"
                say(message, "warning", sys.stderr)


def leave_out(stream):
    """Sends what is written to a stream from here on to /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def add_arguments(parser):
    """Adds the options of every command that `configure` takes."""
    parser.add_argument(
        "--quiet", action="store_true", help="print results and errors only"
    )
    parser.add_argument(
        "--log",
        choices=("text", "json"),
        default="text",
        help="json: each line of the log is an object with time, level and message, "
        "and of training with step, loss and all else that is measured (text)",
    )


def configure(quiet=False, log="text"):
    """Sets how lines are shown from here on, those of Python's logging too.

    `quiet` shows only results and errors. `log` is "text" or "json".
    """
    _state.update(quiet=quiet, json=log == "json")
    logging.disable(logging.WARNING if quiet else logging.NOTSET)
    logging.captureWarnings(quiet or _state["json"])
    logging.root.removeHandler(_HANDLER)
    if _state["json"]:
        logging.root.addHandler(_HANDLER)


def draws():
    """Returns whether progress bars may be drawn: on a terminal, as text."""
    shown = sys.stdout is not None and sys.stdout.isatty()
    return shown and not any(_state.values())


def is_json():
    """Returns whether lines are JSON."""
    return _state["json"]


def say(message, level="info", file=None, fields=()):
    """Shows a line, unless `quiet` is on.

    Args:
        message: str.
        level: "info", "warning", "result" or "error". The last two are always shown.
        file: where it goes; None for standard output, of errors standard error.
        fields: dictionary of numbers and strings for JSON alone. A number that is not
            finite is null; arrays, and names of `KEYS`, are left out.
    """
    if _state["quiet"] and level not in ("error", "result"):
        return
    if file is None:
        file = sys.stderr if level == "error" else sys.stdout
    if _state["json"]:
        message = as_json(message, level, fields)
    elif level in ("warning", "error"):
        message = f"{level}: {message}"
    if file is not None:  # A program without a terminal may have no streams.
        print(message, file=Lasting(file), flush=True)


def as_json(message, level="info", fields=()):
    """Returns the line that `say` shows as JSON, a str."""
    now = datetime.datetime.now(datetime.UTC)
    line = {"time": now.isoformat(timespec="milliseconds"), "level": level}
    line["message"] = message
    for name, value in dict(fields).items():
        if not isinstance(value, (int, str)):
            with contextlib.suppress(TypeError, ValueError):  # an array
                number = float(value)
                line.setdefault(name, number if math.isfinite(number) else None)
        else:
            line.setdefault(name, value)
    return json.dumps(line)


class _Json(logging.Formatter):
    """Lines of Python's logging, which absl and warnings write too."""

    def format(self, record):
        lines = [record.getMessage()]
        if record.exc_info:
            lines.append(self.formatException(record.exc_info))
        return as_json("\n".join(lines), record.levelname.lower())


class _Handler(logging.StreamHandler):
    """Writes to what is standard error at the moment."""

    def emit(self, record):
        self.stream = sys.stderr
        super().emit(record)


_HANDLER = _Handler()
_HANDLER.setFormatter(_Json())
