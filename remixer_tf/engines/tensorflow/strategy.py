"""`tf.distribute` strategies: the devices that share a run, and their batches."""

import contextlib
import functools
import json
import os
import socket
import time
import urllib.parse

import seqio
import tensorflow as tf
from absl import logging
from tensorflow.python.eager import context

from remixer_tf.engines import ports
from remixer_tf.engines.engine import Host
from remixer_tf.errors import StorageError, UserError

_STRATEGIES = ("single", "mirrored", "multi_worker", "tpu:ADDRESS")
_CONNECT_SECONDS = 10
_WORKERS_SECONDS = 300  # as `JaxEngine.distributed`


@functools.cache
def get_strategy(name="single"):
    """Returns the `tf.distribute.Strategy` called `name`, always the same object.

    The collectives of two MirroredStrategies in one process get the same keys, and fail
    if their tensors differ in shape.

    Args:
        name: str.

            - 'single': the first accelerator, or the CPU.
            - 'mirrored': all accelerators of this machine, or all logical CPU devices
              if it has none. Each has a copy of the variables.
            - 'multi_worker': 'mirrored' on several machines, each with its TF_CONFIG.
            - 'tpu:ADDRESS': all cores of a TPU slice. ADDRESS is 'local' on a TPU VM,
              or the slice's name, or 'grpc://HOST:PORT'.

    Raises:
        ValueError: there is no such strategy, or TF_CONFIG is missing or not valid.
        OSError: no TPU answers, or a worker has not started after 300 s.
    """
    if name == "single":
        return tf.distribute.get_strategy()
    if name == "mirrored":
        there = tf.config.list_logical_devices
        names = [device.name for device in there("GPU") or there("CPU")]
        return tf.distribute.MirroredStrategy(names)
    if name == "multi_worker":
        return _connect(*_read_tf_config(os.environ.get("TF_CONFIG")))
    if name.startswith("tpu:"):
        return _tpu_strategy(name.removeprefix("tpu:"))
    raise UserError(
        f"There is no strategy called {name!r}. Expected one of "
        f"{', '.join(map(repr, _STRATEGIES))}. Set it with "
        "--gin.TensorFlowEngine.strategy=..."
    )


def uses_xla(jit_compile):
    """Returns `jit_compile`; if it is None, whether there is a GPU."""
    if jit_compile is None:
        return bool(tf.config.list_physical_devices("GPU"))
    return jit_compile


def get_host(strategy):
    """Returns this process as a `Host`. One process feeds a whole TPU slice."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return Host()
    resolver = strategy.cluster_resolver
    spec = resolver.cluster_spec().as_dict()
    index = resolver.task_id
    if resolver.task_type == "worker":
        index += len(spec.get("chief", ()))

    count = sum(len(spec.get(job, ())) for job in ("chief", "worker"))
    local_replicas = strategy.num_replicas_in_sync // count

    @tf.function
    def sum_over_hosts(numbers):
        def sum_over_replicas(numbers):
            context = tf.distribute.get_replica_context()
            # A copy on the replica's device, where the strategy looks for it.
            return context.all_reduce("SUM", tf.identity(numbers))

        return strategy.run(sum_over_replicas, (numbers,))

    def gather(number):
        numbers = tf.one_hot(index, count, tf.cast(number, tf.int64), dtype=tf.int64)
        sums = strategy.experimental_local_results(sum_over_hosts(numbers))[0]
        return [int(total) // local_replicas for total in sums.numpy()]

    shard = seqio.ShardInfo(index, count)
    return Host(index, count, lambda: gather(0), shard, gather=gather)


def split_rows(batch, strategy, axis=0):
    """Gives each replica of this host its rows, on its own device.

    `axis` is that of the rows of a batch, a dictionary of tensors or arrays. The result
    is for `strategy.run`: for one replica the batch itself.
    """
    replicas = local_replicas(strategy)
    if replicas == 1:
        return batch
    with tf.device("CPU:0"):
        parts = {name: tf.split(x, replicas, axis) for name, x in batch.items()}
    devices = strategy.extended.worker_devices

    def part(context):
        replica = context.replica_id_in_sync_group % replicas
        with tf.device(devices[replica]):
            return {name: tf.identity(x[replica]) for name, x in parts.items()}

    return strategy.experimental_distribute_values_from_function(part)


def local_replicas(strategy):
    """Returns the number of replicas on this host."""
    return strategy.num_replicas_in_sync // get_host(strategy).count


def take_reduced_gradients(optimizer):
    """Makes `optimizer.apply` take gradients that are summed over the replicas.

    Clipping and the gradient's norm need the sum before the update. Keras would add
    the gradients up again, and has no argument to prevent it.
    """
    if not hasattr(optimizer, "_all_reduce_sum_gradients"):
        raise AttributeError(
            f"{type(optimizer).__name__} has no _all_reduce_sum_gradients: this "
            "version of Keras adds gradients up elsewhere. Use Keras 3.15."
        )
    optimizer._all_reduce_sum_gradients = lambda gradients_and_variables: (
        gradients_and_variables
    )


def _read_tf_config(text):
    """Returns the addresses of TF_CONFIG's workers, and which one this process has.

    They are a dictionary of (job, index) to (host, port), and one of its keys. Raises a
    ValueError unless TF_CONFIG names the workers and this worker's index.
    """
    expected = (
        "Expected the same workers on every machine, and its own index: TF_CONFIG='{\""
        'cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": '
        '"worker", "index": 0}}\'.'
    )
    if not text:
        raise UserError(f"Strategy 'multi_worker' needs TF_CONFIG. {expected}")
    try:
        config = json.loads(text)
        task = config["task"]["type"], int(str(config["task"]["index"]))
        cluster = dict(config["cluster"])
        addresses = {
            (job, i): _host_and_port(address)
            for job in ("chief", "worker")
            for i, address in enumerate(cluster.pop(job, ()))
        }
        if cluster:
            raise UserError(f"{', '.join(cluster)} in place of worker or chief")
        if ("chief", 1) in addresses:
            raise UserError("two chiefs")
        if len({*addresses.values()}) < len(addresses):
            raise UserError("two workers have one address")
        if task not in addresses:
            raise UserError(f"{task[0]} {task[1]} is not in the cluster")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = error if isinstance(error, UserError) else repr(error)
        raise UserError(f"TF_CONFIG is not valid ({why}): {text}. {expected}") from None
    return addresses, task


def _host_and_port(address):
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not 0 < int(port) < 2**16:
        raise UserError(f"{address!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def _connect(addresses, task, seconds=_WORKERS_SECONDS):
    """Returns the strategy of the workers, see `_read_tf_config`."""
    _wait_for_workers(addresses, task, seconds)
    # TensorFlow waits much longer, in a call that no signal interrupts. This shortens
    # the wait for the first worker. The first worker's wait for others has no setting.
    tf_context = context.context()
    tf_context.configure_coordination_service = functools.partial(
        tf_context.configure_coordination_service,
        cluster_register_timeout_in_ms=seconds * 1000,
    )
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except tf.errors.OpError as error:
        others = {x: place for x, place in addresses.items() if x != task}
        reason = (error.message or "").partition("\n")[0]
        raise StorageError(
            f"{task[0]} {task[1]} cannot connect with {_names(others)} "
            f"({type(error).__name__}: {reason}). Start all workers again: one has "
            "ended, or another program has its port."
        ) from None


def _wait_for_workers(addresses, task, seconds):
    """Waits until all workers listen, see `_read_tf_config`; a StorageError if late."""
    others = {x: place for x, place in addresses.items() if x != task}
    me, end = f"{task[0]} {task[1]}", time.monotonic() + seconds
    if others:
        logging.warning("%s waits up to %s s for %s", me, seconds, _names(others))
    with ports.listen(addresses[task][1], me, "the TF_CONFIG of all workers") as own:
        own.setblocking(False)
        # All at once: one that was there may have ended while another was missing.
        while missing := {x: y for x, y in others.items() if not _listens(y)}:
            if time.monotonic() > end:
                raise StorageError(
                    f"{me} has waited {seconds} s for {_names(missing)}. Start all "
                    "workers again within that time, where they reach each other."
                )
            time.sleep(0.2)
            with contextlib.suppress(BlockingIOError):  # The queue of callers is short.
                while True:
                    own.accept()[0].close()


def _names(addresses):
    return ", ".join(
        f"{job} {i} at {host}:{port}" for (job, i), (host, port) in addresses.items()
    )


def _listens(place):
    try:
        socket.create_connection(place, _CONNECT_SECONDS).close()
    except OSError:  # It has not started, or its name is not known yet.
        return False
    return True


def _tpu_strategy(address):
    """Connects to a TPU; raises OSError if none answers."""
    try:
        if address.startswith("grpc://"):  # TensorFlow would wait for minutes.
            url = urllib.parse.urlsplit(address)
            socket.create_connection((url.hostname, url.port), _CONNECT_SECONDS).close()
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, IndexError, OSError, tf.errors.OpError) as error:
        reason = str(getattr(error, "message", error)).splitlines() or [""]
        raise StorageError(
            f"No TPU answers at {address!r} ({type(error).__name__}: {reason[0]}). "
            "Set --gin.TensorFlowEngine.strategy=tpu:local on a TPU VM, or give "
            "the TPU's name or grpc://HOST:PORT after 'tpu:'. It needs TensorFlow's "
            "TPU build (the package tensorflow-tpu)."
        ) from None
