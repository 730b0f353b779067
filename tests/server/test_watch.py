"""A newer version of a model answers when it is ready, and no request is dropped."""

import concurrent.futures
import os
import shutil
import time

import httpx
import pytest

import remixer_tf as rt
from remixer_tf.checkpoints.export_folder import is_export
from remixer_tf.command_line import parse_command_line
from remixer_tf.commands import serve
from remixer_tf.errors import UserError
from remixer_tf.server.limits import Limits
from remixer_tf.server.models import (
    Source,
    export_version,
    is_saved_model,
    newest_export,
)
from tests.server.conftest import LIMITS, listening, of_run, serving
from tests.server.echo import Echo
from tests.server.test_load import megabytes


class Files:
    """Versions of a model on a disk."""

    def __init__(self):
        self.newest, self.loaded, self.damaged = "7", [], "damaged"

    def load(self, thread):
        version = self.newest
        self.loaded.append(version)
        if version == self.damaged:
            raise UserError("it is damaged")
        served = Echo("echo", LIMITS, thread)
        served.version = version
        return served


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_version_that_is_being_copied_is_tried_again():
    files = Files()
    source = Source("echo", files.load, lambda: files.newest)
    with serving([source], watch=0.02) as client:
        files.newest = "damaged"
        wait_for(lambda: files.loaded.count("damaged") > 2)
        files.damaged = "9"  # The copy is whole, under the same number.
        wait_for(lambda: 'version="damaged"' in client.get("/metrics").text)
        tries = files.loaded.count("damaged")
        message = "echo: no newer version is taken: it is damaged"
        assert client.said.count(message) == 1 and tries < 10  # ever rarer
        assert client.post("/generate", json={"inputs": "a"}).status_code == 200


def test_each_time_that_a_folder_is_missing_is_told():
    files, is_there = Files(), [True]

    def newest():
        if not is_there[0]:
            raise UserError("there is no folder")
        return files.newest

    with serving([Source("echo", files.load, newest)], watch=0.02) as client:
        message = "echo: no newer version is taken: there is no folder"
        for times in (1, 2):
            is_there[0] = False
            wait_for(lambda times=times: client.said.count(message) == times)
            assert client.post("/generate", json={"inputs": "a"}).status_code == 200
            is_there[0] = True
            files.newest = str(8 + times)  # It looks again.
            wait_for(lambda: files.newest in files.loaded)


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
        assert version() == "7"
        files.newest = "8"
        wait_for(lambda: version() == "8")
        assert files.loaded[:2] == ["7", "damaged"] and files.loaded[-1] == "8"
        assert any("echo: version 8 answers now" in line for line in client.said)
        assert 'remixer_tf_model{model="echo",version="8"} 1.0' in (
            client.get("/metrics").text
        )


@pytest.mark.parametrize(
    "is_one, files",
    [
        (is_saved_model, ["saved_model.pb"]),
        (is_export, ["model.json", "operative_config.gin", "model.tflite"]),
        (is_export, ["model.json", "operative_config.gin", "model.onnx"]),
    ],
)
def test_the_highest_number_is_the_newest_export(is_one, files, tmp_path):
    for number in ("9", "10", "11"):
        (tmp_path / number).mkdir()
        if number != "11":  # is being written elsewhere
            for file in files:
                (tmp_path / number / file).touch()
    newest = newest_export(str(tmp_path), is_one)
    assert export_version(newest) == "10"
    assert newest_export(newest, is_one) == newest
    assert export_version(str(tmp_path)) == "1"  # A folder without a number stays so.


@pytest.mark.slow
@pytest.mark.slower
@pytest.mark.parametrize("format", ["saved_model", "litert", "onnx"])
def test_a_higher_number_is_taken_and_no_request_is_dropped(
    bytes_run, tmp_path, format
):
    exports, question = tmp_path / "exports", "A cat"
    rt.load(bytes_run).export(str(exports / "1200"), format)
    option = "export" if format == "saved_model" else "model_dir"
    options = parse_command_line(
        [f"--{option}=tiny={exports}", "--batch_sizes=1,4"], "", serve.add_arguments
    )
    expected = rt.load(bytes_run).generate(question)
    end = time.monotonic() + 240

    def ask(url):
        """Asks until the new version answers; returns the versions that answered."""
        versions = []
        while versions[-1:] != ["2400"]:
            assert time.monotonic() < end
            found = httpx.post(f"{url}/generate", json={"inputs": question}, timeout=30)
            assert found.status_code == 200 and found.json()["outputs"] == expected
            versions.append(found.json()["version"])
        return versions

    with (
        listening(serve.find_sources(options, LIMITS), watch=0.1) as url,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        asked = [pool.submit(ask, url) for _ in range(4)]
        shutil.copytree(exports / "1200", tmp_path / "copy")
        os.rename(tmp_path / "copy", exports / "2400")
        for versions in (one.result() for one in asked):
            assert versions == sorted(versions) and versions[0] == "1200"


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
