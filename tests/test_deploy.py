"""The commands of deploy/Dockerfile run in a fresh Debian, and its server answers."""

import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from remixer_tf import __version__
from tests.tiny_run import train_run

ROOT = pathlib.Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DEBIAN = os.environ.get("REMIXER_TF_DEBIAN")  # a folder that debootstrap has made
TOKEN = "a-long-secret"


def instructions(name):
    """[(instruction, its text)] of the Dockerfile."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    pairs = [line.split(" ", 1) for line in lines if line and line[0] != "#"]
    return [text for kind, text in pairs if kind == name]


def test_the_names_are_of_this_version():
    """What is copied is what `pip wheel` and the repository have."""
    (copied,) = instructions("COPY")
    constraints, wheel, _ = copied.split()
    assert (ROOT / constraints).exists()
    assert wheel == f"deploy/remixer_tf-{__version__}-py3-none-any.whl"


@pytest.mark.parametrize("name", ["compose.yaml", "kserve.yaml"])
def test_they_are_yaml_and_name_options_that_there_are(name):
    import yaml

    from remixer_tf.commands import serve

    text = (DEPLOY / name).read_text()
    assert all(isinstance(part, dict) for part in yaml.safe_load_all(text))
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    known = parser.format_help()
    for option in set(re.findall(r"--\w+(?==)", text)):
        assert option in known, option


@pytest.mark.slower
@pytest.mark.skipif(
    not DEBIAN or os.geteuid() != 0,
    reason="REMIXER_TF_DEBIAN names no fresh Debian, or root does not run the test",
)
def test_its_commands_run_in_a_fresh_debian(tmp_path):
    debian = pathlib.Path(DEBIAN)
    wheel = [sys.executable, "-m", "pip", "wheel", "--no-deps", f"--wheel-dir={DEPLOY}"]
    subprocess.run([*wheel, ROOT], check=True)
    (copied,) = instructions("COPY")
    *files, folder = copied.split()
    target = debian / folder.strip("/")
    target.mkdir(exist_ok=True)
    for file in files:
        shutil.copy(ROOT / file, target)
    (DEPLOY / files[-1].split("/")[-1]).unlink()
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
    inside = {"env": environment, "check": True}
    for command in instructions("RUN"):
        subprocess.run(["chroot", debian, "sh", "-c", command], **inside)
    run = tmp_path / "run"
    train_run(run, "bytes")
    shutil.copytree(run, debian / "models" / "run", dirs_exist_ok=True)
    (entry,), (user,) = instructions("ENTRYPOINT"), instructions("USER")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["chroot", f"--userspec={user}", debian, *json.loads(entry)]
    environment |= {"HOME": f"/home/{user}", "REMIXER_TF_TOKEN": TOKEN}
    server = subprocess.Popen(
        [*command, "--model_dir=/models/run", f"--port={port}"], env=environment
    )
    try:
        wait_until_ready(server, f"http://127.0.0.1:{port}")
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/generate",
            json.dumps({"inputs": "a cat"}).encode(),
            {"Authorization": f"Bearer {TOKEN}"},
        )
        with urllib.request.urlopen(request) as response:
            assert isinstance(json.load(response)["outputs"], str)
    finally:
        server.terminate()
        assert server.wait(60) == 0


def wait_until_ready(server, address):
    for _ in range(300):
        assert server.poll() is None
        try:
            with urllib.request.urlopen(f"{address}/readyz"):
                return
        except urllib.error.URLError:
            time.sleep(1)
    raise AssertionError("The server was not ready after 300 s.")
