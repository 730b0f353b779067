"""Lines of the log: text, JSON, or none."""

import contextlib
import datetime
import json
import logging
import math
import sys

_state = {"quiet": False, "json": False}


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
    return sys.stdout.isatty() and not any(_state.values())


def is_json():
    """Returns whether lines are JSON."""
    return _state["json"]


def say(message, level="info", file=None, **fields):
    """Shows a line, unless `quiet` is on.

    Args:
        message: str.
        level: "info", "warning", "result" or "error". The last two are always shown.
        file: where it goes; None for standard output, of errors standard error.
        **fields: numbers and strings for JSON alone. A number that is not finite is
            null; arrays are left out.
    """
    if _state["quiet"] and level not in ("error", "result"):
        return
    if file is None:
        file = sys.stderr if level == "error" else sys.stdout
    if _state["json"]:
        message = _as_json(level, message, fields)
    elif level in ("warning", "error"):
        message = f"{level}: {message}"
    print(message, file=file, flush=True)


def _as_json(level, message, fields):
    now = datetime.datetime.now(datetime.UTC)
    line = {"time": now.isoformat(timespec="milliseconds"), "level": level}
    line["message"] = message
    for name, value in fields.items():
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
        return _as_json(record.levelname.lower(), "\n".join(lines), {})


class _Handler(logging.StreamHandler):
    """Writes to what is standard error at the moment."""

    def emit(self, record):
        self.stream = sys.stderr
        super().emit(record)


_HANDLER = _Handler()
_HANDLER.setFormatter(_Json())
