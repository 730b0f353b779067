"""The train step: forward, backward, all-reduce, update."""

import contextlib

import tensorflow as tf

from remixer_tf.engines.engine import check_rows
from remixer_tf.engines.tensorflow.replicas import split_rows
from remixer_tf.engines.tensorflow.strategy import (
    get_host,
    take_reduced_gradients,
    uses_xla,
)
from remixer_tf.layers.dropout import replica
from remixer_tf.objectives.batches import (
    count_throughput,
    scorable,
    targets_and_weights,
)
from remixer_tf.objectives.objective import Objective, unused_variables
from remixer_tf.optimizers.options import check_optimizer

# Sums that the loss, the auxiliary losses and the statistics do not bring.
_SCALARS = (
    *("weight", "tokens", "stop", "gradient_norm"),
    *("learning_rate", "steps", "updates", "skipped"),
)


class TrainStep:
    """Several optimizer steps in one `tf.function` call, on any strategy.

    `Engine.step` says what a call takes, computes and returns. Replica r of R takes the
    rows r * batch / R ... (r + 1) * batch / R of a host's batch, so that one and R
    replicas compute the same numbers. Only forward and backward run under XLA: a
    strategy's collectives and the update of mirrored variables cannot be compiled with
    them. Gradients are made dense before the optimizer sees them, since Keras'
    optimizers square each slice of a sparse gradient, and not their sum. They are
    clipped after the all-reduce, by their norm as one device would have it.

    Args:
        model: a built `keras.Model`, `model(batch, training=True)` giving what
            `loss_fn` takes.
        optimizer: a `keras.optimizers.Optimizer`; it is built here if it is not yet,
            and its `apply` no longer adds up the gradients of replicas.
        strategy: the strategy under whose scope both were made.
        objective: the `Objective`; None for its defaults.
        jit_compile: whether XLA compiles forward and backward; None for on GPUs.

    Attributes:
        run_steps: the `tf.function` that a call runs, of what `arguments` returns.
    """

    def __init__(self, model, optimizer, strategy, objective=None, jit_compile=None):
        check_optimizer(optimizer)
        self._model = model
        self._optimizer = optimizer
        self._strategy = strategy
        self._objective = objective or Objective()
        self._micro_batches = self._objective.micro_batches
        self._num_replicas = strategy.num_replicas_in_sync
        self._local_replicas = self._num_replicas // get_host(strategy).count
        self.jit_compile = uses_xla(jit_compile)
        self._gradients = tf.function(
            self._forward_backward, jit_compile=self.jit_compile, autograph=False
        )
        self.run_steps = tf.function(self._loop, autograph=False)
        self._shapes = {}  # of the sums, known when the model has been traced
        if not optimizer.built:
            with strategy.scope():
                optimizer.build(model.trainable_variables)
        take_reduced_gradients(optimizer)

    def __call__(self, superbatch, stop=False):
        return self.run_steps(*self.arguments(superbatch, stop))

    def arguments(self, superbatch, stop=False):
        """Returns what `run_steps` takes: each replica's part, and the wish to stop."""
        rows = targets_and_weights(superbatch)[0].shape[1]
        check_rows(rows, self._local_replicas, self._micro_batches)
        split = split_rows(superbatch, self._strategy, axis=1)
        return split, tf.constant(float(stop))

    def _loop(self, superbatch, stop):
        """Runs one step for each index of the leading axis and adds the sums up."""

        def first_local(value):
            return self._strategy.experimental_local_results(value)[0]

        def step(index, sums):
            learning_rate = tf.cast(self._optimizer.learning_rate, tf.float32)
            new, gradients = self._strategy.run(
                self._reduced_gradients, (superbatch, index, stop)
            )
            # All replicas have the same.
            new = {k: first_local(value) for k, value in new.items()}
            norm = new["gradient_norm"]
            finite = tf.math.is_finite(norm) & tf.math.is_finite(new["objective"])

            def update():
                self._strategy.run(self._apply, (gradients,))
                return tf.constant(1.0)

            # Around `run`: inside, an optimizer cannot be called conditionally.
            updates = tf.cond(
                finite & (new["weight"] > 0), update, lambda: tf.constant(0.0)
            )
            new["learning_rate"] = learning_rate
            new = {
                key: value if key == "stop" else tf.where(updates > 0, value, 0.0)
                for key, value in new.items()
            }
            new |= {
                "steps": tf.constant(1.0),
                "updates": updates,
                "skipped": 1.0 - tf.cast(finite, tf.float32),
            }
            return {key: sums[key] + new[key] for key in sums} if sums else new

        targets, _ = targets_and_weights(superbatch)
        num_steps = first_local(targets).shape[0]
        if num_steps == 1:
            return step(0, {})
        self._strategy.run(self._trace, (superbatch,))
        _, sums = tf.while_loop(
            lambda index, _: index < num_steps,
            lambda index, sums: (index + 1, step(index, sums)),
            (
                tf.constant(0),
                {key: tf.zeros(shape) for key, shape in self._shapes.items()},
            ),
            maximum_iterations=num_steps,
        )
        return sums

    def _trace(self, superbatch):
        """Notes names and shapes of the sums, which a loop needs to know beforehand."""
        batch, replica_id = self._batch_at(superbatch, 0)
        specs = self._part_specs(batch)
        traced = self._gradients.get_concrete_function(*specs, replica_id)
        sums, _ = traced.structured_outputs
        self._shapes = {key: value.shape for key, value in sums.items()}
        self._shapes |= dict.fromkeys(_SCALARS, tf.TensorShape([]))

    def _part_specs(self, batch):
        """Returns what `_gradients` takes of a micro-batch, without the replica."""
        specs = {
            key: tf.TensorSpec(
                [value.shape[0] // self._micro_batches, *value.shape[1:]], value.dtype
            )
            for key, value in batch.items()
        }
        return specs, tf.TensorSpec([], tf.float32)

    def _batch_at(self, superbatch, index):
        """Returns a batch of the replica that calls, and the replica's index."""
        context = tf.distribute.get_replica_context()
        batch = {key: value[index] for key, value in superbatch.items()}
        replica_id = tf.convert_to_tensor(context.replica_id_in_sync_group)
        return scorable(batch, self._model), replica_id

    def _reduced_gradients(self, superbatch, index, stop):
        """Returns sums and gradients of all replicas together."""
        context = tf.distribute.get_replica_context()
        batch, replica_id = self._batch_at(superbatch, index)
        _, weights = targets_and_weights(batch)
        local_weight = tf.reduce_sum(tf.cast(weights, tf.float32))
        weight = context.all_reduce("SUM", local_weight)
        sums, gradients = self._accumulate(batch, weight, replica_id)
        sums |= {
            "weight": local_weight,
            "tokens": count_throughput(batch),
            "stop": tf.identity(stop),  # into the graph of the loop
        }
        sums, gradients = context.all_reduce("SUM", (sums, gradients))
        sums["gradient_norm"] = norm = tf.linalg.global_norm(gradients)
        if (most := self._objective.clip_norm) is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, most, norm)
        return sums, gradients

    def _accumulate(self, batch, weight, replica_id):
        """Returns the loss sums and gradients of all micro-batches, added up."""
        if self._micro_batches == 1:
            return self._gradients(batch, weight, replica_id)
        specs = self._part_specs(batch)
        traced = self._gradients.get_concrete_function(*specs, replica_id)
        parts = {
            key: tf.reshape(value, [self._micro_batches, -1, *value.shape[1:]])
            for key, value in batch.items()
        }

        def part(index):
            rows = {key: value[index] for key, value in parts.items()}
            return traced(rows, weight, replica_id)

        _, sums, gradients = tf.while_loop(
            lambda index, *_: index < self._micro_batches,
            lambda index, *totals: (
                index + 1,
                *tf.nest.map_structure(tf.add, totals, part(index)),
            ),
            (
                tf.constant(0),
                *tf.nest.map_structure(
                    lambda output: tf.zeros(output.shape), traced.structured_outputs
                ),
            ),
            maximum_iterations=self._micro_batches,
        )
        return sums, gradients

    def _apply(self, gradients):
        self._optimizer.apply(gradients, self._model.trainable_variables)

    def _forward_backward(self, batch, weight, replica_id):
        """Returns the sums and dense gradients of one part of the batch."""
        several = self._num_replicas > 1
        masks = replica(replica_id) if several else contextlib.nullcontext()
        variables = [v.value for v in self._model.trainable_variables]
        share = 1.0 / (self._num_replicas * self._micro_batches)
        with tf.GradientTape() as tape, masks:
            objective, sums = self._objective.of_part(self._model, batch, weight, share)
        gradients = tape.gradient(objective, variables)
        unused = [
            variable.path
            for variable, gradient in zip(
                self._model.trainable_variables, gradients, strict=True
            )
            if gradient is None
        ]
        if unused:
            raise unused_variables(unused)
        return sums, [tf.convert_to_tensor(gradient) for gradient in gradients]
