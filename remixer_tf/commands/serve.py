"""Serves models over HTTP: TensorFlow Serving's, KServe's and OpenAI's protocols.

The address is that of this machine alone, unless --host names another. GET / is a page
to ask, GET /openapi.json lists what the server is asked, GET /metrics is for
Prometheus. SIGTERM and Ctrl-C end the server; requests that came before are answered.
"""

import argparse
import dataclasses
import functools
import ipaddress
import logging
import os
import re
import signal
import socket
import sys
import time

from remixer_tf import console
from remixer_tf.commands import add_list, add_number, sizes
from remixer_tf.errors import MissingFileError, UserError, library
from remixer_tf.server.limits import Limits

TOKEN = "REMIXER_TF_TOKEN"  # in the environment
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_SIZES = [1, 4, 8, 16, 32]
_CONNECTIONS = 512  # at once; others are refused


def add_arguments(parser):
    help = (
        "folder of a run, of published weights, or of an export of LiteRT or ONNX, or "
        "the folder above exports, of which the highest number is taken"
    )
    add_list(parser, "--model_dir", "[NAME=]DIR", f"{help}; repeat it for several")
    help = (
        "folder of a SavedModel, or the folder above it, as for --model_dir; it needs "
        "neither seqio nor gin"
    )
    add_list(parser, "--export", "[NAME=]DIR", help)
    help = "step of the run's checkpoint; default: the newest"
    add_number(parser, "--step", help, least=0)
    help = "folder of adapters that were trained on the run's weights"
    parser.add_argument("--adapters", metavar="DIR", help=help)
    parser.add_argument(
        "--gin.NAME=VALUE",
        dest="unused",
        default=argparse.SUPPRESS,
        metavar="",
        help="sets a parameter of the runs, such as --gin.text_to_text.max_length=64",
    )
    add_list(parser, "--module_import", "MODULE", "module of yours to import first")
    help = "let a run's own configuration run code of whoever made it"
    parser.add_argument("--trust", action="store_true", help=help)
    help = "the model's name in requests; default: that of its folder"
    parser.add_argument("--name", help=help)
    help = "address to listen at (127.0.0.1); one of other machines needs a token"
    parser.add_argument("--host", default="127.0.0.1", help=help)
    help = "port to listen at; 0 takes a free one"
    add_number(parser, "--port", help, 8000, least=0)
    help = f"what requests must have, as Authorization: Bearer TOKEN; default: {TOKEN}"
    parser.add_argument("--token", help=f"{help} of the environment, which hides it")
    help = "let other machines ask without a token"
    parser.add_argument("--no-token", action="store_true", help=help)
    parser.add_argument(
        "--batch_sizes",
        type=sizes,
        default=_SIZES,
        metavar="M,N",
        help="numbers of texts that are computed together, each "
        "with programs of its own (1,4,8,16,32)",
    )
    help = "seconds between looks for a newer checkpoint or export, which is then taken"
    add_number(parser, "--watch", help)
    help = "seconds to answer what was taken, at the end"
    add_number(parser, "--grace", help, 30, least=0)
    for field in dataclasses.fields(Limits):
        least = 0 if field.name == "max_searches" else 1
        help = field.metadata["help"]
        add_number(parser, f"--{field.name}", help, field.default, least)


def run(options):
    for module in ("starlette", "uvicorn", "prometheus_client"):
        library(module, "remixer_tf serve", "serve")
    token = options.token or os.environ.pop(TOKEN, None)
    _check(options, token)
    limits = Limits(
        **{x.name: getattr(options, x.name) for x in dataclasses.fields(Limits)}
    )
    sources = find_sources(options, limits)
    listening = _listen(options.host, options.port)
    # As uvicorn hands the signal on when it has ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    start = time.monotonic()
    host, port = listening.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    names = ", ".join(source.name for source in sources)
    console.say(f"serving {names} at http://{host}:{port} once loaded")
    from remixer_tf.startup import load_tensorflow

    load_tensorflow()
    from remixer_tf.server.app import Server
    from remixer_tf.server.connection import Connection, http_server
    from remixer_tf.server.models import Models

    Connection.seconds, Connection.most = limits.body_timeout, _CONNECTIONS
    # Its lines would be tracebacks of clients that leave.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)

    def say(line):
        console.say(f"{line} ({time.monotonic() - start:.1f} s since the start)")

    app = Server(Models(sources, say), limits, token, options.watch, say)
    server = http_server(app, options.grace)
    app.on_failure = lambda: setattr(server, "should_exit", True)
    try:
        server.run(sockets=[listening])
    finally:
        busy = app.models.are_busy()  # It loads, or --grace is over.
        if not app.error and (busy or app.models.are_compiling()):
            if late := busy and app.models.all_ready():
                console.say("ended before all was answered", "warning", sys.stderr)
            sys.stdout.flush()
            os._exit(int(late))  # Threads would go on.
    if app.error:
        raise app.error


def _check(options, token):
    """Raises a UserError for options that do not fit each other."""
    if not options.model_dir and not options.export:
        raise UserError("there is nothing to serve. Set --model_dir or --export.")
    if options.name and len(options.model_dir + options.export) > 1:
        raise UserError(
            "--name is for one model. Name several by --model_dir=NAME=FOLDER."
        )
    if not options.model_dir:
        for name in ("adapters", "step", "gin_bindings", "module_import"):
            if getattr(options, name) not in (None, []):
                what = name.replace("gin_bindings", "gin")
                raise UserError(f"--{what} is for runs, and --export is no run.")
    one = options.adapters is not None or options.step is not None
    if one and len(options.model_dir) > 1:
        raise UserError("--step and --adapters are for one run.")
    if options.max_rows > options.max_queue:
        raise UserError("--max_queue must be at least --max_rows.")
    sizes = options.batch_sizes
    if sizes != sorted({*sizes}) or sizes[0] < 1:
        raise UserError(
            "--batch_sizes must rise, from 1 at least. Received: "
            f"{','.join(map(str, sizes))}"
        )
    if token is not None and not re.fullmatch(r"[\x21-\x7e]{8,}", token):
        raise UserError(
            f"the token (--token or {TOKEN}) must have at least 8 characters of ASCII, "
            f"and no blank. Received: {len(token)} characters."
        )
    if token is None and not options.no_token and not _is_loopback(options.host):
        raise UserError(
            f"--host={options.host} lets other machines ask. Set --token (or {TOKEN}),"
            " or --no-token if all may."
        )
    if options.port > 65535:
        raise UserError(f"--port is at most 65535. Received: {options.port}")


def _is_loopback(host):
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_sources(options, limits):
    """Returns the list of the `Source`s that the options name."""
    from remixer_tf.checkpoints.export_folder import is_export
    from remixer_tf.server.models import Source, find_export, is_saved_model

    sources = []
    sizes = tuple(options.batch_sizes)
    for given in options.model_dir:
        name, folder = _named(given, options.name)
        if not os.path.exists(folder) and not os.path.exists(f"{folder}.index"):
            raise MissingFileError(f"there is no {folder}. Set --model_dir to a run.")
        if find_export(folder, is_saved_model):
            raise UserError(f"{folder} is a SavedModel. Set --export={given}")
        load = functools.partial(_load_run, folder, name, limits, sizes, options)
        newest = None
        if find_export(folder, is_export):
            newest = functools.partial(_newest_number, folder, is_export)
        elif os.path.isdir(os.path.join(folder, "checkpoints")):
            newest = functools.partial(_newest_step, folder)
        if options.step is not None:
            newest = None
        sources.append(Source(name, load, newest))
    for given in options.export:
        name, folder = _named(given, options.name)
        if find_export(folder, is_export):
            raise UserError(f"{folder} is no SavedModel. Set --model_dir={given}")
        newest = functools.partial(_newest_number, folder, is_saved_model)
        newest()
        load = functools.partial(_load_export, folder, name, limits, sizes)
        sources.append(Source(name, load, newest))
    names = [source.name for source in sources]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(
            f"two models are called {min(twice)}. Name them: --model_dir=NAME=FOLDER."
        )
    return sources


def _named(given, name=None):
    """Returns the name and folder of "NAME=FOLDER" or "FOLDER"."""
    first, equals, rest = given.partition("=")
    if equals and re.fullmatch(_NAME, first) and rest:
        name, given = name or first, rest
    folder = os.path.expanduser(given)
    if name is None:
        parts = os.path.abspath(folder).split(os.sep)
        while len(parts) > 1 and re.fullmatch(
            r"\d+|(export|litert|onnx)(_\w+)?", parts[-1]
        ):
            parts.pop()  # RUN/export/8000, RUN/litert_int8/8000
        name = re.sub(r"[^A-Za-z0-9._-]", "_", parts[-1]).strip("._-") or "model"
    if not re.fullmatch(_NAME, name):
        raise UserError(
            f"a model's name has letters, digits, '.', '_' and '-'. Received: {name!r}"
        )
    return name, folder


def _load_run(folder, name, limits, sizes, options, thread):
    import remixer_tf as rt
    from remixer_tf.checkpoints.export_folder import is_export
    from remixer_tf.server.models import find_export
    from remixer_tf.server.of_run import ServedRun

    run = rt.load(
        find_export(folder, is_export) or folder,
        options.step,
        adapters=options.adapters,
        bindings=options.gin_bindings,
        modules=options.module_import,
        trust=options.trust,
    )
    return ServedRun(run, name, limits, thread, sizes)


def _newest_step(folder):
    from remixer_tf.checkpoints.reading import choose_step

    return str(choose_step(folder))


def _newest_number(folder, is_export):
    from remixer_tf.server.models import export_version, newest_export

    return export_version(newest_export(folder, is_export))


def _load_export(folder, name, limits, sizes, thread):
    from remixer_tf.server.models import is_saved_model, newest_export
    from remixer_tf.server.of_export import ServedExport

    folder = newest_export(folder, is_saved_model)
    return ServedExport(folder, name, limits, thread, sizes)


def _listen(host, port):
    """Returns a socket that is bound, before anything slow is done."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "no such name"
        raise UserError(f"--host={host} is no address: {reason}.") from None
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise UserError(
            f"cannot listen at {host}, port {port}: {error.strerror}. Choose another "
            "--port, or 0 for a free one."
        ) from None
    return listening
