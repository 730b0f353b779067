"""Servers that are asked through Starlette's client, without a socket."""

import contextlib
import socket
import threading
import time

import pytest
from starlette.testclient import TestClient

from remixer_tf.server.app import Server
from remixer_tf.server.connection import http_server
from remixer_tf.server.limits import Limits
from remixer_tf.server.models import Models, Source

# Runs of encoders and images are those of the front door's tests.
from tests.front_door.conftest import (  # noqa: F401, I001
    classifier_run,
    image_run,
    lm_run,
    span_run,
    words_lm_run,
)
from tests.server.echo import Echo

SIZES = (1, 4)
LIMITS = Limits(max_rows=8, max_characters=500, max_bytes=20_000, max_queue=12)


def of_run(name, folder, limits=LIMITS, sizes=SIZES):
    """The `Source` of a run."""
    import remixer_tf as rt
    from remixer_tf.server.of_run import ServedRun

    def load(thread):
        return ServedRun(rt.load(folder), name, limits, thread, sizes)

    return Source(name, load)


def of_echo(name="echo", limits=LIMITS, made=None):
    """The `Source` of a model that answers with capital letters; `made` gets it."""

    def load(thread):
        served = Echo(name, limits, thread)
        if made is not None:
            made.append(served)
        return served

    return Source(name, load)


@contextlib.contextmanager
def serving(sources, limits=LIMITS, **options):
    """A block with a client of a server that is ready.

    The client has the `app`, and what it `said`.
    """
    said = []
    app = Server(Models(sources, said.append), limits, say=said.append, **options)
    with TestClient(app) as client:
        end = time.monotonic() + 240
        while not app.models.all_ready():
            assert app.error is None and time.monotonic() < end, app.error
            time.sleep(0.01)
        client.said = said
        yield client


@contextlib.contextmanager
def listening(sources, limits=LIMITS, **options):
    """A block with the URL of a server that listens at a port, and is ready."""
    app = Server(Models(sources, print), limits, say=lambda line: None, **options)
    server = http_server(app, grace=2)
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=server.run, args=([bound],))
        thread.start()
        end = time.monotonic() + 240
        try:
            while not app.models.all_ready():
                assert app.error is None and time.monotonic() < end, app.error
                time.sleep(0.01)
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="session")
def client():
    """Asks a server of one model, called "echo"."""
    with serving([of_echo()]) as client:
        yield client


@pytest.fixture(scope="session")
def tiny(bytes_run):
    """Asks a server of a run, called "tiny"."""
    with serving([of_run("tiny", bytes_run)]) as client:
        yield client
