"""Sharing a batch among the replicas of this host."""

import numpy as np
import tensorflow as tf

from remixer_tf.engines.engine import check_rows
from remixer_tf.engines.tensorflow.strategy import get_host


def compile_on_replicas(function, strategy, jit_compile, any_rows=False):
    """A function of a batch as a graph, each replica of this host on its rows.

    No replica waits for another, nor for another host: of several hosts, one may call
    it alone.

    Args:
        function: takes a dictionary of tensors `[rows, ...]` and returns a structure of
            tensors that have a leading axis too.
        strategy: the `tf.distribute.Strategy` of the model.
        jit_compile: bool, whether XLA compiles the function.
        any_rows: see `Engine.compile`. XLA, which needs static shapes, still compiles
            the one graph for each number of rows.

    Returns:
        a function that takes such a batch, and returns the structure with NumPy arrays:
        the replicas' results, one after the other along the leading axis. It raises a
        ValueError if the rows do not divide among the replicas.
    """
    compiled = tf.function(function, jit_compile=jit_compile, autograph=False)
    replicas = strategy.num_replicas_in_sync // get_host(strategy).count

    def compute(batch):
        if not any_rows:
            return compiled(batch)
        specs = {
            name: tf.TensorSpec([None, *x.shape[1:]], x.dtype)
            for name, x in batch.items()
        }
        return compiled.get_concrete_function(specs)(batch)

    run_replicas = tf.function(
        lambda batch: strategy.run(compute, (batch,)), autograph=False
    )
    run = compute if replicas == 1 else run_replicas

    def call(batch):
        check_rows(next(iter(batch.values())).shape[0], replicas)
        results = strategy.experimental_local_results(run(split_rows(batch, strategy)))
        return tf.nest.map_structure(
            lambda *parts: np.concatenate([part.numpy() for part in parts]), *results
        )

    return call


def split_rows(batch, strategy, axis=0):
    """Gives each replica of this host its rows alone, on its own device.

    Args:
        batch: dictionary of tensors or arrays, of static shape.
        strategy: the `tf.distribute.Strategy` of the replicas, which divide the rows.
        axis: int, that of the rows.

    Returns:
        dictionary of what `strategy.run` takes, one after the other; the batch itself
        where there is one replica.
    """
    replicas = strategy.num_replicas_in_sync // get_host(strategy).count
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
