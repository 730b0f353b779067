"""Several processes that run one program on JAX, each with its own devices."""

import functools
import itertools
import re

import jax
import numpy as np
import seqio
from absl import logging
from jax._src import distributed
from jax.experimental import multihost_utils

from remixer_tf.checkpoints.host import Host
from remixer_tf.checkpoints.sharded import spread
from remixer_tf.errors import StorageError, UserError

_SHUTDOWN_SECONDS = 60
_ANSWER_SECONDS = 10

# Each has a name, which all processes count alike.
_barriers, _gathers = itertools.count(), itertools.count()


class MissingProcessesError(StorageError):
    """Processes did not come in time."""


def connect(initialization_timeout=300, **options):
    """Connects this process with the others, before JAX looks for its devices.

    A process that is connected stays so. If one is missing after the time limit, JAX
    0.10.2 ends the others by SIGABRT and names none: each logs that it waits.

    Args:
        initialization_timeout, options: see `jax.distributed.initialize`. It finds
            address, number and index itself where Slurm, Open MPI, Kubernetes or Cloud
            TPU started the processes.

    Raises:
        ValueError: an unknown argument, or there is no such cluster.
    """
    if jax.distributed.is_initialized():
        return
    # SIGTERM is for `StopSignal`.
    jax.config.update("jax_enable_preemption_service", False)
    # A process that ends by an error keeps the others waiting for so long.
    options = {"shutdown_timeout_seconds": _SHUTDOWN_SECONDS, **options}
    logging.warning(
        "process %s of %s waits up to %s s for the others at %s. Then JAX ends it "
        "with DEADLINE_EXCEEDED: start those whose output lacks this line.",
        options.get("process_id", "?"),
        options.get("num_processes", "?"),
        initialization_timeout,
        options.get("coordinator_address", "an address that JAX finds"),
    )
    try:
        jax.distributed.initialize(
            initialization_timeout=initialization_timeout, **options
        )
    except (TypeError, ValueError, IndexError) as error:
        raise UserError(
            f"The processes cannot be connected: {error} Expected: "
            "JaxEngine.distributed with what jax.distributed.initialize takes, as "
            "{'coordinator_address': 'localhost:1234', 'num_processes': 2, "
            "'process_id': 0}; {} where Slurm, Open MPI, Kubernetes or Cloud TPU "
            "started the processes; None for this process alone."
        ) from error


def meet(seconds):
    """Returns when all processes have called it as often.

    Args:
        seconds: float, how long one waits for the others.

    Raises:
        MissingProcessesError: not all have called it in time.
    """
    # JAX has no public barrier with a time limit; Orbax takes this one too.
    client = distributed.global_state.client
    name = f"remixer_tf {next(_barriers)}"
    try:
        client.wait_at_barrier(name, round(seconds * 1000))
    except jax.errors.JaxRuntimeError as error:
        missing = re.search(r"timed out task names:\s*([\d\s,]+)", str(error))
        if not missing:
            raise
        raise MissingProcessesError(
            f"Process {', '.join(missing[1].split())} of {jax.process_count()} did "
            f"not come within {seconds} s to where all wait for each other. Its own "
            "output says why; if it was only slow, set a larger "
            "JaxEngine.barrier_seconds."
        ) from None


def gather_numbers(number, barrier):
    """Returns the ints of all processes, which wait at `barrier`; see `Host.gather`."""
    client = distributed.global_state.client
    name = f"remixer_tf gather {next(_gathers)}"
    client.key_value_set(f"{name}/{jax.process_index()}", str(number))
    barrier()
    return [
        int(client.blocking_key_value_get(f"{name}/{i}", _ANSWER_SECONDS * 1000))
        for i in range(jax.process_count())
    ]


def this_host(sharding, num_parts, barrier_seconds):
    """Returns the `Host` that this process is; see `data_shards` and `meet`."""
    shards = data_shards(sharding, num_parts)
    index = jax.process_index()
    first = min(p for p, shard in shards.items() if shard == shards[index])
    barrier = functools.partial(meet, barrier_seconds)
    return Host(
        index,
        jax.process_count(),
        barrier,
        shards[index],
        saves_position=index == first,
        gather=functools.partial(gather_numbers, barrier=barrier),
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
