"""Sharing a batch among the replicas of this host."""

import numpy as np
import tensorflow as tf

from remixer_tf.training.strategy import get_host


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

    def run_replica(batch):
        context = tf.distribute.get_replica_context()
        index = context.replica_id_in_sync_group
        return compute(rows_of_replica(batch, index, replicas))

    run_replicas = tf.function(
        lambda batch: strategy.run(run_replica, (batch,)), autograph=False
    )
    run = compute if replicas == 1 else run_replicas

    def call(batch):
        if _num_rows(batch) % replicas:
            raise ValueError(
                f"A batch of {_num_rows(batch)} examples does not divide among "
                f"{replicas} replicas. Set a batch size that is a multiple of "
                f"{replicas}."
            )
        results = strategy.experimental_local_results(run(batch))
        return tf.nest.map_structure(
            lambda *parts: np.concatenate([part.numpy() for part in parts]), *results
        )

    return call


def rows_of_replica(batch, replica_id, local_replicas):
    """Returns a host's rows that belong to one replica, with static shape.

    Args:
        batch: dictionary of tensors `[rows, ...]`, of static shape.
        replica_id: int or int32 scalar, among the replicas of all hosts.
        local_replicas: int, the replicas of this host, which divide the rows.

    Returns:
        dictionary of tensors `[rows / local_replicas, ...]`.
    """
    if local_replicas == 1:
        return batch
    size = _num_rows(batch) // local_replicas
    start = replica_id % local_replicas * size
    return {
        name: tf.slice(x, [start] + [0] * (x.shape.rank - 1), [size, *x.shape[1:]])
        for name, x in batch.items()
    }


def _num_rows(batch):
    return next(iter(batch.values())).shape[0]
