"""`remixer_tf serve` in a process of its own, asked by the protocols' own clients."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import openai
import pytest
from tritonclient import http as triton

import remixer_tf as rt
from remixer_tf.commands import run_command
from remixer_tf.errors import UserError
from tests.tiny_run import train_run

pytestmark = pytest.mark.slow
TOKEN = "a-token-of-this-test"
# An import of these fails.
WITHOUT = (
    "import sys\nfor name in ('seqio', 't5', 'gin'):\n    sys.modules[name] = None\n"
)
MAIN = "from remixer_tf.__main__ import main\nmain()\n"


@contextlib.contextmanager
def process(*options, before=""):
    """A block with a process that serves, its URL, and its lines until now."""
    command = [sys.executable, "-c", before + MAIN, "serve", "--port=0", *options]
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(started.stdout))
    reader.start()
    try:
        url = None
        end = time.monotonic() + 300
        while time.monotonic() < end and started.poll() is None:
            found = re.search(r"at (http://\S+) once", "".join(lines))
            url = found and found[1]
            with contextlib.suppress(httpx.TransportError):
                if url and httpx.get(f"{url}/readyz").status_code == 200:
                    break
            time.sleep(0.2)
        assert started.poll() is None, "".join(lines)
        yield started, url, lines
    finally:
        started.kill()
        started.wait()
        reader.join()


@pytest.fixture(scope="module")
def served(bytes_run):
    options = [f"--model_dir=tiny={bytes_run}", "--batch_sizes=1,4"]
    with process(*options, f"--token={TOKEN}") as (_, url, lines):
        yield url
        assert not any(TOKEN in line or "Traceback" in line for line in lines)


@pytest.fixture(scope="module")
def run(bytes_run):
    return rt.load(bytes_run)


def test_openais_client(served, run):
    client = openai.OpenAI(base_url=f"{served}/v1", api_key=TOKEN, max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    asked = {"model": "tiny", "prompt": "A cat"}
    found = client.completions.create(**asked)
    assert found.choices[0].text == run.generate("A cat")
    drawn = {"temperature": 1.5, "seed": 3, "n": 3}
    found = client.completions.create(**asked, **drawn)
    assert [choice.text for choice in found.choices] == [
        run.generate("A cat", temperature=1.5, seed=seed) for seed in (3, 4, 5)
    ]
    pieces = client.completions.create(**asked, stream=True, seed=3, temperature=1.5)
    text = "".join(chunk.choices[0].text for chunk in pieces)
    assert text == run.generate("A cat", temperature=1.5, seed=3)
    scored = client.completions.create(**asked, logprobs=1).choices[0]
    values = scored.logprobs.token_logprobs
    (_, score), *_ = run.generate(["A cat"], scores=True)
    assert sum(values) == pytest.approx(score, rel=1e-4)
    with pytest.raises(openai.UnprocessableEntityError, match="max_tokens is at most"):
        client.completions.create(**asked, max_tokens=500)
    wrong = openai.OpenAI(base_url=f"{served}/v1", api_key="no", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="needs the server's token"):
        wrong.models.list()


def test_tritons_client(served, run):
    client = triton.InferenceServerClient(served.removeprefix("http://"))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("tiny", headers=headers)
    about = client.get_model_metadata("tiny", headers=headers)
    assert [x["name"] for x in about["outputs"]][:2] == ["outputs", "scores"]
    texts = np.array([b"A cat", "café".encode()], object)
    for binary in (True, False):
        tensor = triton.InferInput("inputs", [2], "BYTES")
        tensor.set_data_from_numpy(texts, binary_data=binary)
        wanted = triton.InferRequestedOutput("outputs", binary_data=binary)
        # The client adds a header of its own to those that it gets.
        own = {"outputs": [wanted], "headers": dict(headers)}
        found = client.infer("tiny", [tensor], **own)
        found = [
            x.decode() if isinstance(x, bytes) else x
            for x in found.as_numpy("outputs").tolist()
        ]
        assert found == run.generate(["A cat", "café"])
    everything = client.infer("tiny", [tensor], headers=dict(headers))
    assert everything.as_numpy("scores").dtype == np.float32


def test_sigterm_ends_it_when_all_is_answered(bytes_run):
    options = [f"--model_dir={bytes_run}", "--batch_sizes=1", "--name=tiny"]
    with process(*options, "--grace=60") as (started, url, lines):
        place, body = httpx.URL(url), b'{"inputs": "the teacher slept"}'
        head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        clients = [socket.create_connection((place.host, place.port)) for _ in range(6)]
        for client in clients:
            client.sendall(head % len(body) + body[:9])
        time.sleep(0.5)  # until it has taken them
        started.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        for client in clients:
            client.sendall(body[9:])
        for client in clients:
            assert client.recv(12) == b"HTTP/1.1 200"
            client.close()
        assert started.wait(30) == 0, "".join(lines)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/healthz")
    assert not any("Traceback" in line for line in lines)


def test_an_export_needs_neither_seqio_nor_gin(bytes_run, run, tmp_path):
    folder = tmp_path / "export"
    os.makedirs(folder)
    run.export(str(folder / "1"))
    with process(f"--export=tiny={folder}", before=WITHOUT) as (_, url, _):
        found = httpx.post(f"{url}/generate", json={"inputs": ["A cat", "a"]}).json()
        assert found["outputs"] == run.generate(["A cat", "a"])
        assert (found["model"], found["version"]) == ("tiny", "1")
        rows = {"instances": ["A cat"]}
        found = httpx.post(f"{url}/v1/models/tiny:predict", json=rows).json()
        assert found["predictions"][0]["outputs"] == run.generate("A cat")
        body = {"inputs": "A cat", "max_length": 3}
        found = httpx.post(f"{url}/generate", json=body).json()
        assert found["outputs"] == run.generate("A cat", max_length=3)
        found = httpx.post(f"{url}/generate", json=body | {"beams": 2}).json()
        assert "holds one search, which takes no beams" in found["error"]
        found = httpx.post(f"{url}/generate", json=body | {"max_length": 9999})
        assert found.status_code == 422 and "max_length" in found.json()["error"]
        body = {"inputs": "A cat", "targets": "sleep"}
        found = httpx.post(f"{url}/score", json=body).json()
        assert found["scores"] == pytest.approx(run.score(*body.values()), rel=1e-5)


@pytest.fixture
def taken_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        yield bound.getsockname()[1]


def test_mistakes_are_one_line(tmp_path, taken_port, bytes_run):
    folder = tmp_path / "empty"
    folder.mkdir()
    run = f"--model_dir={bytes_run}"
    of_litert = ["model.json", "model.tflite", "operative_config.gin"]
    for kind, files in (("saved", ["saved_model.pb"]), ("litert", of_litert)):
        for folder_of_files in (tmp_path / kind, tmp_path / f"{kind}s" / "7"):
            folder_of_files.mkdir(parents=True)
            for file in files:
                (folder_of_files / file).touch()
    saved, litert = f"{tmp_path}/saved", f"a={tmp_path}/litert"
    for options, message in (
        ([], "there is nothing to serve"),
        ([f"--model_dir={folder}/no"], "there is no"),
        ([f"--export={folder}"], "is no export"),
        ([f"--model_dir={saved}"], f"is a SavedModel. Set --export={saved}"),
        ([f"--model_dir={saved}s"], f"is a SavedModel. Set --export={saved}s"),
        ([f"--export={litert}"], f"is no SavedModel. Set --model_dir={litert}"),
        ([f"--export={litert}s"], f"is no SavedModel. Set --model_dir={litert}s"),
        ([run, f"--port={taken_port}"], "cannot listen at 127.0.0.1"),
        ([run, "--port=70000"], "at most 65535"),
        ([run, "--host=0.0.0.0"], "lets other machines ask. Set --token"),
        ([run, "--no-token", "--host=no.such.name"], "is no address"),
        ([run, "--token=short"], "at least 8 characters"),
        ([run, run], "two models are called"),
        ([run, "--batch_sizes=4,1"], "--batch_sizes must rise"),
        ([run, "--max_queue=9"], "--max_queue must be at least --max_rows"),
        ([f"--model_dir=a/b={bytes_run}"], "there is no a/b="),
        ([f"--export={folder}", "--adapters=x"], "is for runs"),
        ([f"--export={folder}", "--step=0"], "is for runs"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            run_command("serve", options)


@pytest.mark.slower
@pytest.mark.parametrize("others", [False, True])
def test_a_folder_that_cannot_be_loaded_ends_it(tmp_path, bytes_run, others):
    """Also while XLA compiles a model that is ready."""
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "saved_model.pb").write_bytes(b"no model")
    command = [sys.executable, "-m", "remixer_tf", "serve", "--port=0"]
    command += [f"--model_dir=tiny={bytes_run}"] * others
    done = subprocess.run(
        [*command, f"--export={folder}"], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"error: {folder} cannot be loaded")


@pytest.mark.slower
def test_adapters(tmp_path, capsys):
    """Adapters that a run has trained answer on the weights that it began with."""
    folder = f"{tmp_path}/run"
    options = ["Lora.rank=2", "LEARNING_RATE=1.0", "TRAIN_STEPS=3"]
    options += ["train.evaluations=[]"]
    options = [f"--gin.{option}" for option in options]
    train_run(folder, "bytes", "--gin_file=runs/lora.gin", *options)
    run_command("export", [f"--model_dir={folder}", "--format=adapters"])
    adapters = capsys.readouterr().out.split()[-1]
    asked = {"inputs": ["A cat"] * 2, "targets": ["the dog", ""]}
    base = rt.load(folder, 0, bindings=["Run.adapters = None"])
    base, expected = base.score(*asked.values()), rt.load(folder).score(*asked.values())
    assert np.abs(np.subtract(base, expected)).max() > 1e-3
    options = [f"--adapters={adapters}", "--step=0", "--gin.Run.adapters=None"]
    with process(f"--model_dir={folder}", *options, "--batch_sizes=1") as (_, url, _):
        found = httpx.post(f"{url}/score", json=asked, timeout=60).json()
    np.testing.assert_allclose(found["scores"], expected, rtol=1e-4)
