"""Several processes that run one program on JAX, each with its own devices.

`jax.distributed` connects them. If one is missing after its time limit, JAX 0.10.2 ends
the others by SIGABRT and names none. So the processes meet here first.
"""

import contextlib
import itertools
import os
import re
import socket
import time

import jax
import numpy as np
import seqio
from jax._src import distributed
from jax.experimental import multihost_utils

from remixer_tf.checkpoints.host import Host
from remixer_tf.checkpoints.sharded import spread
from remixer_tf.errors import StorageError, UserError

_SHUTDOWN_SECONDS = 60
_RETRY_SECONDS = 0.2
_ANSWER_SECONDS = 10

# Each has a name, which all processes count alike.
_barriers, _gathers = itertools.count(), itertools.count()


class MissingProcessesError(StorageError):
    """Processes did not come in time."""


def connect(
    coordinator_address=None,
    num_processes=None,
    process_id=None,
    *,
    initialization_timeout=300,
    **options,
):
    """Connects this process with the others, before JAX looks for its devices.

    A process that is connected stays so.

    Args:
        coordinator_address, num_processes, process_id, initialization_timeout, options:
            see `jax.distributed.initialize`. It finds the first three itself where
            Slurm, Open MPI, Kubernetes or Cloud TPU started the processes.

    Raises:
        MissingProcessesError: not all have come within `initialization_timeout`
            seconds. (JAX, which would end the process instead, is not asked then.)
        ValueError: an unknown argument, or there is no such cluster.
    """
    if jax.distributed.is_initialized():
        return
    # SIGTERM is for `StopSignal`.
    jax.config.update("jax_enable_preemption_service", False)
    # A process that ends by an error keeps the others waiting for so long.
    options = {"shutdown_timeout_seconds": _SHUTDOWN_SECONDS, **options}
    names = coordinator_address, num_processes, process_id
    try:
        if None in names:
            method = options.get("cluster_detection_method")
            names = _detect(*names, method, initialization_timeout)
        if None not in names:
            _meet(*names, initialization_timeout)
        jax.distributed.initialize(
            *names, initialization_timeout=initialization_timeout, **options
        )
    except MissingProcessesError:
        raise
    except (TypeError, ValueError) as error:
        raise UserError(
            f"The processes cannot be connected: {error} Expected: "
            "JaxEngine.distributed with what jax.distributed.initialize takes, as "
            "{'coordinator_address': 'localhost:1234', 'num_processes': 2, "
            "'process_id': 0}; {} where Slurm, Open MPI, Kubernetes or Cloud TPU "
            "started the processes; None for this process alone."
        ) from error


def _detect(address, count, index, method, seconds):
    """Returns address, count and index, those that are None as JAX finds them."""
    given = address, count, index
    if method == "deactivate":
        return given
    try:
        from jax._src.clusters import ClusterEnv

        address = address or os.environ.get("JAX_COORDINATOR_ADDRESS")
        *found, _ = ClusterEnv.auto_detect_unset_distributed_params(
            address, count, index, None, method, seconds
        )
    except Exception:  # JAX's own, which may change, or fail: it tries again, and says.
        return given
    return found


def _meet(address, count, index, seconds):
    """Waits until all processes are there. The first hears of the others, and tells."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal() and 0 <= index < count):
        raise UserError(
            f"{address} is no HOST:PORT, or process {index} is none of {count}."
        )
    if index == 0:
        missing = _hear(int(port), set(range(1, count)), seconds)
    else:
        missing = _report((host, int(port)), index, seconds)
    if missing:
        names = ", ".join(map(str, sorted(missing)))
        raise MissingProcessesError(
            f"Process {names} of {count} did not come to {address} within {seconds} s. "
            "Start all of them, with the same coordinator_address and num_processes "
            "and each with its own process_id; the address is of process 0, and the "
            "others reach it. Or set --gin.JaxEngine.distributed=None for this process "
            "alone."
        )


def _hear(port, others, seconds):
    """Returns which of the others have not reported in time, a set."""
    missing, end = set(others), time.monotonic() + seconds
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            socket.create_server(("", port), family=family, dualstack_ipv6=dual)
        )
        there = []
        while missing and (left := end - time.monotonic()) > 0:
            server.settimeout(left)
            with contextlib.suppress(OSError, ValueError):  # late, or none of us
                connection = stack.enter_context(server.accept()[0])
                connection.settimeout(left)
                missing.discard(int(connection.recv(16)))
                there.append(connection)
        for connection in there:
            with contextlib.suppress(OSError):
                connection.sendall(",".join(["met", *map(str, missing)]).encode())
    return missing


def _report(address, index, seconds):
    """Reports to the first, and returns which others have not, a set."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(OSError):
            with socket.create_connection(address, timeout=left) as connection:
                connection.sendall(str(index).encode())
                # The first may have begun only now.
                connection.settimeout(seconds + _ANSWER_SECONDS)
                answer = connection.recv(1 << 16).decode(errors="replace")
            if answer.startswith("met"):
                return {int(name) for name in answer.split(",")[1:]}
        time.sleep(min(_RETRY_SECONDS, left))
    return {0}


class Barrier:
    """A function that returns when all processes have called it as often.

    Args:
        seconds: how long one waits for the others.

    Raises:
        MissingProcessesError: not all have called it in time.
    """

    def __init__(self, seconds):
        self._seconds = seconds

    def __call__(self):
        # JAX has no public barrier with a time limit; Orbax takes this one too.
        client = distributed.global_state.client
        name = f"remixer_tf {next(_barriers)}"
        try:
            client.wait_at_barrier(name, round(self._seconds * 1000))
        except jax.errors.JaxRuntimeError as error:
            missing = re.search(r"timed out task names:\s*([\d\s,]+)", str(error))
            if not missing:
                raise
            raise MissingProcessesError(
                f"Process {', '.join(missing[1].split())} of {jax.process_count()} did "
                f"not come within {self._seconds} s to where all wait for each other. "
                "Its own output says why; if it was only slow, set a larger "
                "JaxEngine.barrier_seconds."
            ) from None


def gather_by(barrier):
    """Returns the `Host.gather` of the connected processes, which wait at `barrier`."""

    def gather_numbers(number):
        client = distributed.global_state.client
        name = f"remixer_tf gather {next(_gathers)}"
        client.key_value_set(f"{name}/{jax.process_index()}", str(number))
        barrier()
        return [
            int(client.blocking_key_value_get(f"{name}/{i}", _ANSWER_SECONDS * 1000))
            for i in range(jax.process_count())
        ]

    return gather_numbers


def this_host(sharding, num_parts, barrier_seconds):
    """Returns the `Host` that this process is; see `data_shards` and `Barrier`."""
    shards = data_shards(sharding, num_parts)
    index = jax.process_index()
    first = min(p for p, shard in shards.items() if shard == shards[index])
    barrier = Barrier(barrier_seconds)
    return Host(
        index,
        jax.process_count(),
        barrier,
        shards[index],
        saves_position=index == first,
        gather=gather_by(barrier),
    )


def data_shards(sharding, num_parts):
    """Says which part of the data each process reads: that of its devices.

    Processes whose devices have the same rows of a batch read the same.

    Args:
        sharding: `NamedSharding` of a batch's rows.
        num_parts: int, in how many parts it splits them.

    Returns:
        {process index: `seqio.ShardInfo`}.

    Raises:
        ValueError: the processes do not share the rows evenly.
    """
    parts = {}
    for device, (rows,) in sharding.devices_indices_map((num_parts,)).items():
        start, _, _ = rows.indices(num_parts)
        parts.setdefault(device.process_index, set()).add(start)
    parts = {process: tuple(sorted(own)) for process, own in parts.items()}
    shards = sorted(set(parts.values()))
    sizes = {len(shard) for shard in shards}
    if len(sizes) > 1 or sum(map(len, shards)) != num_parts:
        raise UserError(
            "The processes do not share a batch evenly: of its parts they have "
            f"{parts}. Choose a JaxEngine.mesh_shape in which each has as many, and "
            "two have the same or none in common."
        )
    return {
        process: seqio.ShardInfo(shards.index(own), len(shards))
        for process, own in parts.items()
    }


def put(values, shardings):
    """Puts arrays on the devices of all processes, each of which has all of them.

    Args:
        values: structure of arrays: those of JAX that several processes share already,
            and others, whole and the same in every process.
        shardings: the same structure of shardings.

    Returns:
        the structure of `jax.Array`s.
    """
    if jax.process_count() > 1:
        values = jax.tree.map(spread, values, shardings)
    return jax.device_put(values, shardings)


def gather(array):
    """Returns a `jax.Array`, of which other processes may hold parts, as NumPy's.

    All processes call it.
    """
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return multihost_utils.process_allgather(array, tiled=True)
