"""What several processes agree on, without starting them; test_engines_tf.py does."""

import collections
import concurrent.futures
from types import SimpleNamespace

import jax
import pytest
import seqio
from jax._src.clusters import ClusterEnv

from remixer_tf.checkpoints.host import Host
from remixer_tf.engines.jax import processes
from remixer_tf.engines.jax.engine import make_mesh
from remixer_tf.engines.jax.processes import (
    MissingProcessesError,
    connect,
    data_shards,
)
from remixer_tf.evaluation.evaluate import evaluate
from remixer_tf.run import Run
from tests.engines.test_multi_worker import free_ports


def meet(count, *present, seconds):
    """Returns what each of those that are present raises, or None."""
    (port,) = free_ports(1)
    address = f"localhost:{port}"
    with concurrent.futures.ThreadPoolExecutor() as pool:
        futures = [
            pool.submit(processes._meet, address, count, index, seconds)
            for index in present
        ]
        return [future.exception() for future in futures]


def test_all_meet():
    assert meet(3, 2, 1, 0, seconds=30) == [None] * 3


@pytest.mark.parametrize(
    ("present", "seconds", "words"),
    [
        pytest.param((0, 2), 3, "Process 1, 3 of 4 did not", marks=pytest.mark.slow),
        ((1,), 0.1, "Process 0 of 4 did not"),
    ],
)
def test_who_is_missing_is_told_to_all(present, seconds, words):
    for error in meet(4, *present, seconds=seconds):
        assert isinstance(error, MissingProcessesError) and words in str(error)


@pytest.mark.parametrize(
    "arguments", [("nowhere", 2, 0), ("localhost:1", 2, 2), ("localhost:", 2, 1)]
)
def test_arguments_that_do_not_fit(arguments):
    with pytest.raises(ValueError, match="cannot be connected.*'process_id': 0}"):
        connect(*arguments)


@pytest.fixture
def of_cluster(monkeypatch):
    """Process 1 of 2 as Open MPI would start it; the address of the first."""
    (port,) = free_ports(1)
    variables = {
        "OMPI_MCA_orte_hnp_uri": "4096.0;tcp://127.0.0.1:1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "JAX_COORDINATOR_PORT": str(port),
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return f"127.0.0.1:{port}"


def test_who_is_missing_of_a_cluster_is_told(of_cluster):
    with pytest.raises(MissingProcessesError, match=f"0 of 2 did not.* {of_cluster}"):
        connect(initialization_timeout=0.1)


@pytest.mark.parametrize("broken", [False, True])
def test_jax_is_asked_where_its_clusters_are_not_as_they_were(
    of_cluster, monkeypatch, broken
):
    """It gets what is known, and says itself what it cannot find."""
    asked = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *a, **_: asked.append(a))
    monkeypatch.setattr(processes, "_meet", lambda *_: None)
    if broken:
        monkeypatch.delattr(
            ClusterEnv, "auto_detect_unset_distributed_params", raising=True
        )
    connect()
    connect(cluster_detection_method="deactivate")
    nothing = (None, None, None)
    assert asked == [nothing if broken else (of_cluster, 2, 1), nothing]


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
