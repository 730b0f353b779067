"""Two hosts with addresses of their own train together, and one of them dies.

The hosts are network namespaces of this machine. Between them is a pair of virtual
network devices, and neither reaches the other by localhost. Each has a name of its own,
its address, as JAX's gloo asks for the address of the host's name.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf

from tests.tiny_run import BYTES, SIZES

ROOT = pathlib.Path(__file__).parents[2]
STEPS, PERIOD = 50, 10
LIMIT = 130  # seconds until a process that waits for a dead one has ended
SETTINGS = [
    *[*BYTES, *SIZES, "--gin.BATCH_SIZE=8", "--gin.LENGTH_BUCKETS=None"],
    *[f"--gin.TRAIN_STEPS={STEPS}", "--gin.WARMUP_STEPS=5"],
    *["--gin.LongExamples.count_limit=0", "--gin.Schedule.steps_per_call=1"],
    *["--gin.Schedule.log_period=10", "--gin.train.evaluations=[]"],
    *[f"--gin.Schedule.checkpoint_period={PERIOD}", "--gin.Checkpointing.keep=9"],
]


def root(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def hosts():
    """Makes two hosts. Yields (the start of a command on it, its address) of each."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "hostname"))):
        pytest.skip("network namespaces need root, iproute2 and util-linux")
    names = [f"rtf-{os.getpid()}-{i}" for i in range(2)]
    devices = [f"rtf{os.getpid()}{i}" for i in "ab"]
    addresses = ["10.77.0.1", "10.77.0.2"]
    with contextlib.ExitStack() as stack:
        for name in names:
            try:
                root("ip", "netns", "add", name)
            except subprocess.CalledProcessError as error:
                pytest.skip(f"ip netns is not allowed here: {error.stderr.strip()}")
            stack.callback(root, "ip", "netns", "del", name)
        root("ip", "link", "add", devices[0], "type", "veth", "peer", devices[1])
        for name, device, address in zip(names, devices, addresses, strict=True):
            root("ip", "link", "set", device, "netns", name)
            inside = "ip", "-n", name
            root(*inside, "address", "add", f"{address}/24", "dev", device)
            root(*inside, "link", "set", device, "up")
            root(*inside, "link", "set", "lo", "up")
        inside = [["ip", "netns", "exec", name, "unshare", "--uts"] for name in names]
        yield [*zip(inside, addresses, strict=True)]


def start(hosts, engine, folder):
    """Starts `train` on both hosts; returns the processes."""
    addresses = [address for _, address in hosts]
    started = []
    for index, (inside, address) in enumerate(hosts):
        command = [sys.executable, "-m", "remixer_tf", "train", *SETTINGS]
        command.append(f"--model_dir={folder}")
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        if engine == "jax":
            environment["KERAS_BACKEND"] = "jax"
            several = {"coordinator_address": f"{addresses[0]}:7777"}
            several |= {"num_processes": 2, "process_id": index}
            command += ["--gin.JaxEngine.mesh_shape=data:2"]
            command += [f"--gin.JaxEngine.distributed={several}"]
        else:
            environment["KERAS_BACKEND"] = "tensorflow"
            cluster = {"worker": [f"{address}:7777" for address in addresses]}
            task = {"type": "worker", "index": index}
            environment["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
            command += ["--gin.TensorFlowEngine.strategy=multi_worker"]
        named = ["sh", "-c", 'hostname "$0" && exec "$@"', address]
        output = open(f"{folder}.{index}.log", "w")
        started.append(
            subprocess.Popen(
                [*inside, *named, *command],
                env=environment,
                stdout=output,
                stderr=output,
            )
        )
        output.close()
    return started


def finish(processes, folder):
    for index, process in enumerate(processes):
        code = process.wait(timeout=400)
        assert code == 0, pathlib.Path(f"{folder}.{index}.log").read_text()[-2000:]


def weights(folder):
    """All numbers of the last checkpoint, {name: array}."""
    (state,) = (folder / "checkpoints" / str(STEPS)).glob("state*.index")
    reader = tf.train.load_checkpoint(str(state.with_suffix("")))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if "OBJECT_GRAPH" not in name
    }


@pytest.mark.slow
@pytest.mark.slower
@pytest.mark.parametrize("engine", ["jax", "tensorflow"])
def test_two_hosts_train_and_resume_after_one_died(engine, hosts, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(hosts, engine, whole), whole)

    first, second = start(hosts, engine, broken)
    deadline = time.monotonic() + 400
    while not (broken / "checkpoints" / str(2 * PERIOD)).exists():
        assert first.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(second.pid, signal.SIGKILL)
    killed = time.monotonic()
    assert first.wait(timeout=LIMIT) == 2
    last = pathlib.Path(f"{broken}.0.log").read_text().splitlines()[-1]
    assert last.startswith("error: another worker has ended: "), last
    assert time.monotonic() - killed < LIMIT
    assert not (broken / "checkpoints" / str(STEPS)).exists()

    finish(start(hosts, engine, broken), broken)
    one, two = weights(whole), weights(broken)
    assert one.keys() == two.keys() and len(one) > 20
    for name, values in one.items():
        np.testing.assert_array_equal(values, two[name], err_msg=name)
