"""A newer version of a model answers when it is ready, and no request is dropped."""

import time

from remixer_tf.errors import UserError
from remixer_tf.server.models import Source, export_version, newest_export
from tests.server.conftest import LIMITS, serving
from tests.server.echo import Echo


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


def wait_for(condition):
    end = time.monotonic() + 10
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
