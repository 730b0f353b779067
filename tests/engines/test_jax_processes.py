"""Several processes agree, and end together; test_engines_tf.py trains two."""

import collections
import os
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import jax
import pytest
import seqio

from remixer_tf.engines.engine import Host
from remixer_tf.engines.jax.engine import make_mesh
from remixer_tf.engines.jax.processes import connect, data_shards
from remixer_tf.errors import StorageError
from remixer_tf.evaluation.evaluate import evaluate
from remixer_tf.run import Run
from tests.engines.test_multi_worker import free_ports


@pytest.mark.parametrize(
    "arguments",
    [{"coordinator_address": "nowhere"}, {"process_id": 2}, {"process": 1}],
)
def test_arguments_that_do_not_fit(arguments):
    names = ("coordinator_address", "num_processes", "process_id")
    whole = dict(zip(names, ("localhost:1", 2, 0), strict=True)) | arguments
    with pytest.raises(ValueError, match="cannot be connected.*'process_id': 0}"):
        connect(**whole)


def test_it_says_that_it_waits_and_jax_finds_the_rest(monkeypatch, caplog):
    asked = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **kw: asked.append(kw))
    connect()
    connect(coordinator_address="a:1", num_processes=2, process_id=1)
    assert asked[0].keys() == {"initialization_timeout", "shutdown_timeout_seconds"}
    assert asked[1]["process_id"] == 1
    assert "process 1 of 2 waits up to 300 s for the others at a:1" in caplog.text


def test_who_misses_others_ends_after_the_time_limit(monkeypatch, capsys):
    """As a thread does it: JAX's call cannot be interrupted."""
    ended = threading.Event()
    codes = []
    monkeypatch.setattr(os, "_exit", lambda code: (codes.append(code), ended.set()))
    monkeypatch.setattr(jax.distributed, "initialize", lambda **kw: ended.wait(30))
    connect(0.01, coordinator_address="a:1", num_processes=2, process_id=1)
    (line,) = capsys.readouterr().err.splitlines()
    assert codes == [2]
    assert line.startswith("error: process 1 of 2 has waited 0.01 s for the others at ")


def test_a_port_that_the_first_process_cannot_take_is_one_line():
    with socket.create_server(("", 0)) as taken:
        for port in taken.getsockname()[1], 2**16:
            with pytest.raises(StorageError, match=f"0 of 2 cannot listen at .*{port}"):
                connect(coordinator_address=f"a:{port}", num_processes=2, process_id=0)


# Two processes add numbers up until the second one ends.
PAIR = """
import os, signal, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from remixer_tf import commands
from remixer_tf.errors import UserError

address, index, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
commands._WAIT = 1
with commands.errors_in_one_line():
    jax.distributed.initialize(address, num_processes=2, process_id=index)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    x = jax.make_array_from_process_local_data(split, np.ones(4, "float32"))
    add = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))
    for step in range(10**6):
        float(add(x).addressable_data(0))
        if index and step == 20:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise UserError("mine")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("killed", -signal.SIGKILL), ("error", 2)])
def test_the_other_process_ends_with_one_line(how, code):
    (port,) = free_ports(1)
    command = [sys.executable, "-c", PAIR, f"localhost:{port}"]
    pair = [
        subprocess.Popen([*command, str(index), how], stderr=subprocess.PIPE, text=True)
        for index in range(2)
    ]
    said = [process.communicate(timeout=600)[1] for process in pair]
    assert [process.returncode for process in pair] == [2, code]
    assert said[0].splitlines()[-1].startswith("error: another worker has ended: ")
    assert "stack trace" not in said[0] + said[1]
    assert how == "killed" or said[1].splitlines()[-1] == "error: mine"


Device = collections.namedtuple("Device", "process_index number")


class Rows:
    """A sharding of rows: on each process, the parts that its devices hold."""

    def __init__(self, *of_processes):
        self._of_processes = of_processes

    def devices_indices_map(self, shape):
        return {
            Device(process, number): (rows,)
            for process, parts in enumerate(self._of_processes)
            for number, rows in enumerate(parts)
        }


def part(index):
    return slice(index, index + 1)


@pytest.mark.parametrize(
    ("rows", "num_parts", "shards"),
    [
        (Rows([part(0)], [part(1)]), 2, [(0, 2), (1, 2)]),
        (Rows([part(0), part(0)], [part(1), part(1)]), 2, [(0, 2), (1, 2)]),
        (Rows([part(0), part(1)], [part(0), part(1)]), 2, [(0, 1), (0, 1)]),
        (Rows([slice(None)], [slice(None)]), 1, [(0, 1), (0, 1)]),
        # As on a TPU, whose neighbours need not be of one process.
        (Rows([part(1), part(3)], [part(0), part(2)]), 4, [(1, 2), (0, 2)]),
        (Rows([part(0)], [part(0)], [part(1)], [part(1)]), 2,
         [(0, 2), (0, 2), (1, 2), (1, 2)]),
    ],
)  # fmt: skip
def test_each_process_reads_the_rows_of_its_devices(rows, num_parts, shards):
    expected = {i: seqio.ShardInfo(*shard) for i, shard in enumerate(shards)}
    assert data_shards(rows, num_parts) == expected


@pytest.mark.parametrize(
    "rows",
    [Rows([part(0), part(1)], [part(1)]), Rows([part(0), part(1)], [part(2)])],
)
def test_processes_that_share_unevenly_are_refused(rows):
    with pytest.raises(ValueError, match="do not share a batch evenly.*mesh_shape"):
        data_shards(rows, 3)


def test_a_mesh_takes_the_devices_of_all_processes():
    devices = [Device(process, 0) for process in (0, 0, 1, 1)]
    with pytest.raises(ValueError, match="has 2 device.* 2 processes have 4"):
        make_mesh({"data": 2}, devices)


@pytest.mark.parametrize("step", [None, "best", "each"])
def test_several_processes_do_not_each_choose_a_step(tmp_path, step):
    engine = SimpleNamespace(host=Host(1, 2))
    with pytest.raises(ValueError, match="2 processes choose.* --step=1000"):
        evaluate(Run(None, engine=lambda: engine), str(tmp_path), [], step=step)
