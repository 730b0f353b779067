"""Several processes that run one program on JAX, each with its own devices."""

import functools
import itertools
import os
import re
import threading

import jax
import numpy as np
import seqio
from absl import logging
from jax._src import distributed
from jax.experimental import multihost_utils

from remixer_tf import console
from remixer_tf.checkpoints.sharded import spread
from remixer_tf.engines import ports
from remixer_tf.engines.engine import Host
from remixer_tf.errors import StorageError, UserError, check_numbers

_SHUTDOWN_SECONDS = 60

_barriers = itertools.count()  # All processes count alike, for the barriers' names.


class MissingProcessesError(StorageError):
    """Processes did not reach a barrier in time."""


def connect(initialization_timeout=300, **options):
    """Connects this process with the others, before JAX looks for its devices.

    Each process logs that it waits. If one is missing after the time limit, the others
    end with an error in one line and exit code 2. Nothing is raised: JAX waits in a
    call that cannot be interrupted, and then aborts with a stack of C++. The arguments
    are those of `jax.distributed.initialize`, which finds address, number and index by
    itself if Slurm, Open MPI, Kubernetes or Cloud TPU started the processes.
    Raises a ValueError for an unknown argument, or if there is no such cluster.
    """
    if jax.distributed.is_initialized():
        return
    check_numbers(initialization_timeout=initialization_timeout)
    # `StopSignal` handles SIGTERM.
    jax.config.update("jax_enable_preemption_service", False)
    # After an error the other processes wait for this long.
    options = {"shutdown_timeout_seconds": _SHUTDOWN_SECONDS, **options}
    me = (
        f"process {options.get('process_id', '?')} of "
        f"{options.get('num_processes', '?')}"
    )
    address = options.get("coordinator_address", "an address that JAX finds")
    logging.warning(
        "%s waits up to %s s for the others at %s", me, initialization_timeout, address
    )
    port = address.rpartition(":")[2]
    if options.get("process_id") == 0 and port.isdecimal():
        # JAX ends by a segmentation fault if the port is taken.
        where = "JaxEngine.distributed of all processes"
        ports.listen(int(port), me, where).close()
    late = (
        f"{me} has waited {initialization_timeout} s for the others at {address}. "
        "Start all processes again: those whose output does not say that they wait "
        "were missing, or could not reach that address. Starts that take longer need a "
        "larger initialization_timeout in JaxEngine.distributed."
    )
    timer = threading.Timer(initialization_timeout, _end, [late])
    timer.daemon = True
    timer.start()
    try:
        later = initialization_timeout + 60  # JAX ends the process then.
        jax.distributed.initialize(initialization_timeout=later, **options)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        raise UserError(
            f"The processes cannot be connected: {error} Expected: "
            "JaxEngine.distributed with what jax.distributed.initialize takes, as "
            "{'coordinator_address': 'localhost:1234', 'num_processes': 2, "
            "'process_id': 0}; {} where Slurm, Open MPI, Kubernetes or Cloud TPU "
            "started the processes; None for this process alone."
        ) from error
    finally:
        timer.cancel()


def _end(message):
    """Ends this process with an error: nothing can be raised in JAX's call."""
    console.say(message, "error")
    os._exit(2)


def meet(seconds):
    """A barrier; raises MissingProcessesError if a process is missing for `seconds`."""
    # JAX has no public barrier with a time limit. Orbax takes this one too.
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
            "output has the reason. If it was only slow, set a larger "
            "JaxEngine.barrier_seconds."
        ) from None


def this_host(sharding, num_parts, barrier_seconds):
    """Returns this process as a `Host`; see `data_shards` and `meet`."""
    shards = data_shards(sharding, num_parts)
    index = jax.process_index()
    first = min(p for p, shard in shards.items() if shard == shards[index])
    barrier = functools.partial(meet, barrier_seconds)

    def gather_numbers(number):
        barrier()  # It has a time limit.
        return multihost_utils.process_allgather(np.int32(number)).tolist()

    return Host(
        index,
        jax.process_count(),
        barrier,
        shards[index],
        saves_position=index == first,
        gather=gather_numbers,
    )


def data_shards(sharding, num_parts):
    """Returns {process index: `seqio.ShardInfo`}, the part of its devices.

    Processes whose devices have the same rows of a batch read the same part.
    `sharding`, a `NamedSharding`, splits a batch's rows into `num_parts`. Raises a
    ValueError if the processes do not share the rows evenly.
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
    """Puts a structure of arrays on the devices of all processes.

    Every process passes the same whole arrays. `jax.Array`s that processes share stay
    as they are. `shardings` has the same structure.
    """
    if jax.process_count() > 1:
        values = jax.tree.map(spread, values, shardings)
    return jax.device_put(values, shardings)


def gather(array):
    """Returns a whole `jax.Array` as NumPy's. All processes call it."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    return multihost_utils.process_allgather(array, tiled=True)
