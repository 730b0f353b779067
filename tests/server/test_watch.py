"""A newer version of a model answers when it is ready, and no request is dropped."""

import time

import pytest

from remixer_tf.errors import UserError
from remixer_tf.server.limits import Limits
from remixer_tf.server.models import Source, export_version, newest_export
from tests.server.conftest import LIMITS, of_run, serving
from tests.server.echo import Echo
from tests.server.test_load import megabytes


class Files:
    """Versions of a model on a disk."""

    def __init__(self):
        self.newest, self.loaded = "7", []

    def load(self, thread):
        version = self.newest
        self.loaded.append(version)
        if version == "damaged":
            raise UserError("it is damaged")
        served = Echo("echo", LIMITS, thread)
        served.version = version
        return served


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_newer_versions_are_taken():
    files = Files()
    source = Source("echo", files.load, lambda: files.newest)

    def version():
        found = client.post("/generate", json={"inputs": "abc"}).json()
        assert found["outputs"] == "ABC"
        return found["version"]

    with serving([source], watch=0.02) as client:
        assert version() == "7"
        files.newest = "damaged"
        message = "echo: no newer version is taken: it is damaged"
        wait_for(lambda: message in client.said)
        time.sleep(0.1)
        assert version() == "7" and files.loaded == ["7", "damaged"]
        files.newest = "8"
        wait_for(lambda: version() == "8")
        assert files.loaded == ["7", "damaged", "8"]
        assert any("echo: version 8 answers now" in line for line in client.said)
        assert 'remixer_tf_model{model="echo",version="8"} 1.0' in (
            client.get("/metrics").text
        )


def test_the_highest_number_is_the_newest_export(tmp_path):
    for number in ("9", "10", "11"):
        (tmp_path / number).mkdir()
        if number != "11":  # is being written elsewhere
            (tmp_path / number / "saved_model.pb").touch()
    newest = newest_export(str(tmp_path))
    assert export_version(newest) == "10"
    assert newest_export(newest) == newest
    assert export_version(str(tmp_path)) == "1"  # A folder without a number stays so.


@pytest.mark.slow
@pytest.mark.slower
def test_models_that_were_replaced_leave_the_memory(bytes_run):
    """Each holds graphs and programs, some tens of megabytes."""
    versions = iter(range(100))
    newest = [0]
    limits = Limits(timeout=1)

    def load(thread):
        served = of_run("tiny", bytes_run, limits).load(thread)
        served.version = str(next(versions))
        return served

    def is_new():
        (about,) = client.get("/v1/models").json()["data"]
        compiled = 'compiling{model="tiny"} 0.0' in client.get("/metrics").text
        return about["version"] == str(newest[0]) and compiled

    def swap(times):
        for _ in range(times):
            newest[0] += 1
            wait_for(is_new, 120)
            response = client.post("/generate", json={"inputs": "A cat"})
            assert response.status_code == 200
        time.sleep(3)  # The last one is closed after two timeouts.
        return megabytes()

    source = Source("tiny", load, lambda: str(newest[0]))
    with serving([source], limits, watch=0.1) as client:
        before, after = swap(3), swap(6)
    assert after < 1.05 * before, (before, after)
