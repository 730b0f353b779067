"""The train step: forward, backward, all-reduce, update."""

import contextlib

import tensorflow as tf

from remixer_tf.engines.engine import check_rows
from remixer_tf.engines.tensorflow.strategy import (
    local_replicas,
    split_rows,
    take_reduced_gradients,
    uses_xla,
)
from remixer_tf.layers.dropout import replica
from remixer_tf.models.adapters import check_trains
from remixer_tf.objectives.batches import (
    count_throughput,
    scorable,
    targets_and_weights,
)
from remixer_tf.objectives.objective import Objective, reports, unused_variables
from remixer_tf.optimizers import Adafactor
from remixer_tf.optimizers.options import check_optimizer

# Sums that the loss, the auxiliary losses and the statistics do not bring.
_SCALARS = (
    *("weight", "tokens", "stop", "gradient_norm"),
    *("learning_rate", "steps", "updates", "skipped"),
)


class TrainStep:
    """Several optimizer steps in one `tf.function` call, on any strategy.

    See `Engine.step` for the arguments and returns of a call. Replica r of R takes the
    rows r * batch / R ... (r + 1) * batch / R of a host's batch, so one replica and R
    replicas compute the same numbers. XLA compiles forward and backward passes only: it
    cannot compile a strategy's collectives and the update of mirrored variables.
    Gradients become dense before the update, since Keras' optimizers square each slice
    of a sparse gradient and not the slices' sum. Clipping follows the all-reduce.

    `strategy` is the one in whose scope model and optimizer were made. The other
    arguments are those of `JaxTrainStep` and `TensorFlowEngine`. The optimizer's
    `apply` no longer adds up the gradients of replicas. `run_steps` is the
    `tf.function` that a call runs on what `arguments` returns.
    """

    def __init__(
        self,
        model,
        optimizer,
        strategy,
        objective=None,
        jit_compile=None,
        loss_scale=None,
    ):
        check_optimizer(optimizer)
        check_trains(model)
        self._model = model
        self._optimizer = optimizer
        self._strategy = strategy
        self._objective = objective or Objective()
        self._loss_scale = loss_scale
        self._micro_batches = self._objective.micro_batches
        self._num_replicas = strategy.num_replicas_in_sync
        self._gradients = tf.function(
            self._forward_backward,
            jit_compile=uses_xla(jit_compile),
            autograph=False,
        )
        self.run_steps = tf.function(self._loop, autograph=False)
        self._shapes = {}  # of the sums, once the model is traced
        if not optimizer.built:
            with strategy.scope():
                optimizer.build(model.trainable_variables)
        take_reduced_gradients(optimizer)
        if isinstance(optimizer, Adafactor):
            optimizer.compute_update = _traced_by_shape(optimizer.compute_update)

    def __call__(self, superbatch, stop=False):
        return self.run_steps(*self.arguments(superbatch, stop))

    def arguments(self, superbatch, stop=False):
        """Returns what `run_steps` takes: each replica's part, and the wish to stop."""
        rows = targets_and_weights(superbatch)[0].shape[1]
        check_rows(rows, local_replicas(self._strategy), self._micro_batches)
        split = split_rows(superbatch, self._strategy, axis=1)
        return split, tf.constant(float(stop))

    def _loop(self, superbatch, stop):
        """Runs a step for each index of the leading axis, and adds up the sums."""

        def first_local(value):
            return self._strategy.experimental_local_results(value)[0]

        def step(index, sums):
            learning_rate = tf.cast(self._optimizer.learning_rate, tf.float32)
            new, gradients = self._strategy.run(
                self._reduced_gradients, (superbatch, index, stop)
            )
            # All replicas have the same.
            new = {k: first_local(value) for k, value in new.items()}
            norm, objective = new["gradient_norm"], new["objective"]
            finite = tf.math.is_finite(norm) & tf.math.is_finite(objective)

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
            if self._loss_scale is not None:
                new["overflowed"] = self._adapt_scale(updates > 0, finite, objective)
                new["skipped"] -= new["overflowed"]
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

    def _adapt_scale(self, updated, finite, objective):
        """Assigns the loss scale after a step. Returns 1.0 if gradients overflowed."""
        variables = self._loss_scale.variables
        values = [tf.convert_to_tensor(variable.value) for variable in variables]
        values, overflowed = self._loss_scale.after(values, updated, finite, objective)
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
        return tf.cast(overflowed, tf.float32)

    def _trace(self, superbatch):
        """Traces the model. `_loop` needs names and shapes of the sums beforehand."""
        batch, replica_id = self._batch_at(superbatch, 0)
        specs = self._part_specs(batch)
        traced = self._gradients.get_concrete_function(*specs, replica_id)
        sums, _ = traced.structured_outputs
        self._shapes = {key: value.shape for key, value in sums.items()}
        scalars = (*_SCALARS, "overflowed") if self._loss_scale else _SCALARS
        self._shapes |= dict.fromkeys(scalars, tf.TensorShape([]))

    def _part_specs(self, batch):
        """Returns the specs of a micro-batch and of the weight, for `_gradients`."""
        specs = {
            key: tf.TensorSpec(
                [value.shape[0] // self._micro_batches, *value.shape[1:]], value.dtype
            )
            for key, value in batch.items()
        }
        return specs, tf.TensorSpec([], tf.float32)

    def _batch_at(self, superbatch, index):
        """Returns a batch of the calling replica, and the replica's index."""
        context = tf.distribute.get_replica_context()
        batch = {key: value[index] for key, value in superbatch.items()}
        replica_id = tf.convert_to_tensor(context.replica_id_in_sync_group)
        return scorable(batch, self._model), replica_id

    def _reduced_gradients(self, superbatch, index, stop):
        """Returns sums and clipped gradients, added up over all replicas."""
        context = tf.distribute.get_replica_context()
        batch, replica_id = self._batch_at(superbatch, index)
        _, weights = targets_and_weights(batch)
        local_weight = tf.reduce_sum(tf.cast(weights, tf.float32))
        weight = context.all_reduce("SUM", local_weight)
        compute = self._gradients if self._micro_batches == 1 else self._accumulate
        sums, gradients = compute(batch, weight, replica_id)
        sums |= {
            "weight": local_weight,
            "tokens": count_throughput(batch),
            "stop": tf.identity(stop),  # into the graph of the loop
        }
        sums, gradients = context.all_reduce("SUM", (sums, gradients))
        if self._loss_scale is not None:
            scale = tf.convert_to_tensor(self._loss_scale.scale.value)
            gradients = [gradient / scale for gradient in gradients]
        sums["gradient_norm"] = norm = tf.linalg.global_norm(gradients)
        if (most := self._objective.clip_norm) is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, most, norm)
        return sums, gradients

    def _accumulate(self, batch, weight, replica_id):
        """Returns what `_gradients` does, added up over the micro-batches."""
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
        # Frozen variables are not watched: nothing is computed for their gradients.
        with tf.GradientTape(watch_accessed_variables=False) as tape, masks:
            tape.watch(variables)
            with reports(self._model) as reported:
                outputs = self._objective.forward(self._model)(batch)
            objective, sums = self._objective.of_part(
                outputs, batch, reported, weight, share
            )
            if self._loss_scale is not None:
                objective *= tf.convert_to_tensor(self._loss_scale.scale.value)
        gradients = tape.gradient(objective, variables)
        pairs = zip(self._model.trainable_variables, gradients, strict=True)
        if unused := [v.path for v, gradient in pairs if gradient is None]:
            raise unused_variables(unused)
        return sums, [tf.convert_to_tensor(gradient) for gradient in gradients]


def _traced_by_shape(function):
    """Traces a function once for all arguments of equal shapes.

    On CPUs it stays a function in the graph, which TensorFlow then optimizes once too.
    """
    devices = {device.device_type for device in tf.config.list_logical_devices()}
    attributes = {"_noinline": True} if devices == {"CPU"} else None
    return tf.function(function, autograph=False, experimental_attributes=attributes)
