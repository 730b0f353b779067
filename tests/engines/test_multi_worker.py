"""Two processes on this machine train as one does."""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from remixer_tf.engines.tensorflow import strategy
from remixer_tf.engines.tensorflow.strategy import get_strategy
from remixer_tf.errors import StorageError, UserError
from tests.engines.multi_worker import train_toy


def free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def start(model_dir, train_steps):
    """Starts two workers; returns their processes."""
    cluster = {"worker": [f"localhost:{port}" for port in free_ports(2)]}
    command = [sys.executable, "-m", "tests.engines.multi_worker"]
    return [
        subprocess.Popen(
            [*command, str(model_dir), str(train_steps)],
            cwd=pathlib.Path(__file__).parents[2],
            env={
                **os.environ,
                "TF_CONFIG": json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": index}}
                ),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]


def finish(processes):
    """Returns the final weights of each worker."""
    weights = []
    for process in processes:
        output, errors = process.communicate(timeout=900)
        assert process.returncode == 0, errors[-3000:]
        weights.append([np.array(w) for w in json.loads(output.splitlines()[-1])])
    return weights


def read_scalars(model_dir, name):
    """Returns {step: value} of TensorBoard's scalars."""
    values = {}
    for path in pathlib.Path(model_dir, "tensorboard", "train").iterdir():
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.tag == name:
                    values[event.step] = float(tf.make_ndarray(value.tensor))
    return values


@pytest.mark.slower
def test_two_processes_equal_one_and_continue(tmp_path):
    workers = start(tmp_path / "two", 10)
    expected = train_toy(tmp_path / "one", 20, "single")
    finish(workers)
    first, second = finish(start(tmp_path / "two", 20))
    for one, two, three in zip(expected, first, second, strict=True):
        np.testing.assert_array_equal(two, three)
        np.testing.assert_allclose(two, one, atol=1e-5)
    for name in ("loss", "gradient_norm"):
        one = read_scalars(tmp_path / "one", name)
        two = read_scalars(tmp_path / "two", name)
        assert sorted(one) == sorted(two) == list(range(2, 21, 2))
        for step, value in one.items():
            assert two[step] == pytest.approx(value, rel=1e-5), (name, step)
    names = {
        p.name.partition(".")[0] for p in (tmp_path / "two/checkpoints/20").iterdir()
    }
    assert names == {"state", "data-0-of-2", "data-1-of-2", "summary", "checksums"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "needs TF_CONFIG"),
        ("{", "TF_CONFIG is not valid"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}',
         "TF_CONFIG is not valid"),
        ('{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}',
         "TF_CONFIG is not valid"),
    ],
)  # fmt: skip
def test_a_wrong_tf_config_says_what_is_expected(monkeypatch, text, words):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=f'{words}.*"task"'):
        get_strategy("multi_worker")


@pytest.mark.parametrize(
    ("cluster", "task", "words"),
    [
        ({"worker": ["a:1"]}, ("worker", -1), "worker -1 is not in the cluster"),
        ({"worker": ["a:1"]}, ("worker", 0.5), "invalid literal"),
        ({"worker": ["a:1", "a:1"]}, ("worker", 0), "two workers have one address"),
        ({"worker": ["a:65536"]}, ("worker", 0), "'a:65536' is not HOST:PORT"),
        ({"worker": ["grpc://a:1"]}, ("worker", 0), "'grpc://a:1' is not HOST:PORT"),
        ({"ps": ["a:1"], "worker": ["a:2"]}, ("ps", 0), "ps in place of worker"),
        ({"worker": ["a:1"]}, ("evaluator", 0), "evaluator 0 is not in the cluster"),
        ({"chief": ["a:1", "a:2"]}, ("chief", 0), "two chiefs"),
    ],
)
def test_a_cluster_that_cannot_be_is_one_line(cluster, task, words):
    config = {"cluster": cluster, "task": {"type": task[0], "index": task[1]}}
    with pytest.raises(UserError, match=f"^TF_CONFIG is not valid.*{words}"):
        strategy._read_tf_config(json.dumps(config))


@pytest.mark.parametrize("address", ["local", "grpc://localhost:1"])
def test_no_tpu_answers(address):
    with pytest.raises(OSError, match=f"No TPU answers at '{address}'"):
        get_strategy(f"tpu:{address}")


def workers_of(ports):
    return {("worker", i): ("localhost", port) for i, port in enumerate(ports)}


def test_workers_wait_for_each_other():
    addresses = workers_of(free_ports(3))

    def begin(index):
        time.sleep(index / 4)
        task = "worker", index
        strategy._wait_for_workers(addresses, task, seconds=20)
        # TensorFlow's server takes the port.
        servers.enter_context(socket.create_server(("", addresses[task][1])))

    with (
        contextlib.ExitStack() as servers,
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        assert [*pool.map(begin, range(3))] == [None] * 3


def test_a_worker_that_never_starts_is_named():
    addresses = workers_of(free_ports(2))
    place = f"worker 1 at localhost:{addresses['worker', 1][1]}"
    message = f"worker 0 has waited 0.5 s for {place}. Start all workers again"
    with pytest.raises(StorageError, match=message):
        strategy._wait_for_workers(addresses, ("worker", 0), seconds=0.5)
    # One alone waits for nobody.
    (port,) = free_ports(1)
    one = {("chief", 0): ("localhost", port)}
    strategy._wait_for_workers(one, ("chief", 0), seconds=0)


def test_a_worker_that_ends_while_another_is_missing_is_named_too():
    addresses = workers_of(free_ports(3))
    server = socket.create_server(addresses["worker", 1])
    threading.Timer(0.5, server.close).start()
    with pytest.raises(StorageError, match="1 s for worker 1 at .*, worker 2 at "):
        strategy._wait_for_workers(addresses, ("worker", 0), seconds=1)


def test_a_port_in_use_is_one_line():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        for addresses in workers_of([port, *free_ports(1)]), workers_of([port]):
            with pytest.raises(StorageError, match=f"cannot listen at port {port}"):
                strategy._wait_for_workers(addresses, ("worker", 0), seconds=0)
