"""The train step: forward, backward, all-reduce, update."""

import math

import tensorflow as tf

from remixer_tf.objectives import losses, metrics
from remixer_tf.objectives.batches import targets_and_weights, throughput_tensors
from remixer_tf.training.strategy import get_host


class TrainStep:
    """Several optimizer steps in one `tf.function` call, on any strategy.

    The objective of one step is the mean over all real target tokens of the
    global batch, whichever replica they fall to:

        J = sum_r (loss_r + z_loss_r) / sum_r weight_r

    The whole batch of a host goes to each of its replicas, and replica r of R takes
    the rows r * batch / R ... (r + 1) * batch / R, so that one and R replicas compute
    the same numbers. Only forward and backward run under XLA: a strategy's
    collectives and the update of mirrored variables cannot be compiled with them.
    Gradients are made dense before the optimizer sees them, since Keras'
    optimizers square each slice of a sparse gradient, and not their sum. They are
    clipped after the all-reduce: Keras' `global_clipnorm` clips each replica's.

    A step whose loss or gradient is not finite changes neither weights nor slots.

    Args:
      model: a built `keras.Model`, `model(batch, training=True)` giving logits
        [batch, target_length, classes] for the targets that the batch holds.
      optimizer: a `keras.optimizers.Optimizer`; it is built here if it is not yet.
      strategy: the strategy under whose scope both were made.
      z_loss: coefficient of the penalty on log(Z)**2.
      label_smoothing: probability mass taken from the target class.
      micro_batches: int, the parts that a replica's batch is computed in, one after
        the other, to save memory. Same loss and gradient, up to rounding.
      clip_norm: float, the gradient's global norm at most; None does not clip.
      jit_compile: whether XLA compiles forward and backward; None for on GPUs.

    Call arguments:
      superbatch: dict of tensors [steps, batch, ...], this host's part, with targets
        as `targets_and_weights` finds them.
      stop: whether this host wants all hosts to stop.

    Returns of a call:
      dict of float32 scalars, each a sum over the steps: the ones of
      `losses.cross_entropy`, 'gradient_norm' (global, of the reduced gradient, before
      clipping), 'learning_rate', 'tokens' (inputs and targets that are not padding),
      'steps', 'skipped' (steps that were not finite; the other sums leave them out,
      save for 'steps') and 'stop' (over 0 if a host wants to stop). `summarize`
      turns them into means.
    """

    def __init__(
        self,
        model,
        optimizer,
        strategy,
        *,
        z_loss=0.0,
        label_smoothing=0.0,
        micro_batches=1,
        clip_norm=None,
        jit_compile=None,
    ):
        self._model = model
        self._optimizer = optimizer
        self._strategy = strategy
        self._loss_options = {"z_loss": z_loss, "label_smoothing": label_smoothing}
        self.micro_batches = micro_batches
        self._clip_norm = clip_norm
        self._local_replicas = strategy.num_replicas_in_sync // get_host(strategy).count
        if jit_compile is None:
            jit_compile = bool(tf.config.list_physical_devices("GPU"))
        self.jit_compile = jit_compile
        self._gradients = tf.function(
            self._forward_backward, jit_compile=jit_compile, autograph=False
        )
        self._run_steps = tf.function(self._loop, autograph=False)
        if not optimizer.built:
            with strategy.scope():
                optimizer.build(model.trainable_variables)

    def __call__(self, superbatch, stop=False):
        self._check_batch(superbatch)
        return self._run_steps(superbatch, tf.constant(float(stop)))

    def get_concrete_function(self, superbatch):
        """Returns the traced function that a call on data of these shapes runs."""
        self._check_batch(superbatch)
        return self._run_steps.get_concrete_function(superbatch, tf.constant(0.0))

    def _check_batch(self, superbatch):
        batch_size = targets_and_weights(superbatch)[0].shape[1]
        parts = self._local_replicas * self.micro_batches
        if batch_size % parts:
            raise ValueError(
                f"A batch of {batch_size} examples does not divide among "
                f"{self._local_replicas} replicas of {self.micro_batches} "
                f"micro-batch(es). Set a batch size that is a multiple of {parts}."
            )

    def _loop(self, superbatch, stop):
        """Runs one step for each index of the leading axis and adds the sums up."""

        def step(index, sums):
            batch = {key: value[index] for key, value in superbatch.items()}
            learning_rate = tf.cast(self._optimizer.learning_rate, tf.float32)
            per_replica, norm, gradients = self._strategy.run(
                self._reduced_gradients, (batch, stop)
            )
            new = self._strategy.reduce("SUM", per_replica, axis=None)
            new = dict(zip(_REDUCED, tf.unstack(new, len(_REDUCED)), strict=True))
            norm = self._strategy.experimental_local_results(norm)[0]
            finite = tf.math.is_finite(norm) & tf.math.is_finite(new["loss"])

            def update():
                self._strategy.run(self._apply, (gradients,))
                return tf.constant(0.0)

            # Around `run`: inside, an optimizer cannot be called conditionally.
            skipped = tf.cond(finite, update, lambda: tf.constant(1.0))
            new |= {"learning_rate": learning_rate, "gradient_norm": norm}
            new = {
                key: value if key == "stop" else tf.where(finite, value, 0.0)
                for key, value in new.items()
            }
            new |= {"steps": tf.constant(1.0), "skipped": skipped}
            return {key: sums[key] + new[key] for key in sums} if sums else new

        num_steps = targets_and_weights(superbatch)[0].shape[0]
        if num_steps == 1:
            return step(0, {})
        _, sums = tf.while_loop(
            lambda index, _: index < num_steps,
            lambda index, sums: (index + 1, step(index, sums)),
            (tf.constant(0), {key: tf.constant(0.0) for key in _SUMS}),
            maximum_iterations=num_steps,
        )
        return sums

    def _reduced_gradients(self, host_batch, stop):
        """One replica's sums, and the norm and gradients of all replicas together."""
        context = tf.distribute.get_replica_context()
        batch = _replica_part(
            host_batch, context.replica_id_in_sync_group, self._local_replicas
        )
        _, weights = targets_and_weights(batch)
        weight = tf.reduce_sum(tf.cast(weights, tf.float32))
        weight = tf.math.maximum(context.all_reduce("SUM", weight), 1.0)
        sums, gradients = self._accumulate(batch, weight)
        gradients = context.all_reduce("SUM", gradients)
        norm = tf.linalg.global_norm(gradients)
        if self._clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self._clip_norm, norm)
        sums |= {"tokens": _count_tokens(batch), "stop": stop}
        # One vector, so that the replicas' sums need one reduction.
        return tf.stack([sums[key] for key in _REDUCED]), norm, gradients

    def _accumulate(self, batch, weight):
        """Returns the loss sums and gradients of all micro-batches, added up."""
        if self.micro_batches == 1:
            return self._gradients(batch, weight)
        parts = {
            key: tf.reshape(value, [self.micro_batches, -1, *value.shape[1:]])
            for key, value in batch.items()
        }

        def part(index):
            targets, _ = targets_and_weights(batch)
            size = targets.shape[0] // self.micro_batches
            return self._gradients(
                {
                    key: tf.ensure_shape(value[index], [size, *value.shape[2:]])
                    for key, value in parts.items()
                },
                weight,
            )

        _, sums, gradients = tf.while_loop(
            lambda index, *_: index < self.micro_batches,
            lambda index, *totals: (
                index + 1,
                *tf.nest.map_structure(tf.add, totals, part(index)),
            ),
            (
                tf.constant(0),
                {key: tf.constant(0.0) for key in _LOSS_SUMS},
                [tf.zeros(v.shape) for v in self._model.trainable_variables],
            ),
            maximum_iterations=self.micro_batches,
        )
        return sums, gradients

    def _apply(self, gradients):
        # `apply` sums over the replicas once more.
        num_replicas = self._strategy.num_replicas_in_sync
        if num_replicas > 1:
            gradients = [gradient / num_replicas for gradient in gradients]
        self._optimizer.apply(gradients, self._model.trainable_variables)

    def _forward_backward(self, batch, weight):
        """Returns the loss sums and dense gradients of the objective."""
        variables = [v.value for v in self._model.trainable_variables]
        with tf.GradientTape() as tape:
            logits = self._model(batch, training=True)
            sums = losses.cross_entropy(
                logits, *targets_and_weights(batch), **self._loss_options
            )
            objective = (sums["loss"] + sums["z_loss"]) / weight
        gradients = tape.gradient(objective, variables)
        unused = [
            variable.path
            for variable, gradient in zip(
                self._model.trainable_variables, gradients, strict=True
            )
            if gradient is None
        ]
        if unused:
            raise ValueError(
                "The loss does not depend on these trainable variables: "
                f"{', '.join(unused)}. Expected a gradient for each: use them in the "
                "model, or make them non-trainable."
            )
        return sums, [tf.convert_to_tensor(gradient) for gradient in gradients]


_LOSS_SUMS = ("loss", "z_loss", "correct", "weight")
_REDUCED = (*_LOSS_SUMS, "tokens", "stop")
_SUMS = (*_REDUCED, "gradient_norm", "learning_rate", "steps", "skipped")


def summarize(sums):
    """Returns the means that a log line shows, as floats, of summed call results.

    Args:
      sums: what one call of a `TrainStep` returned, or several of them added up.

    Returns:
      dict of floats: loss, z_loss, accuracy and perplexity per target token, and
      gradient_norm and learning_rate per step that was finite; NaN if none was.
    """
    sums = {key: float(value) for key, value in sums.items()}
    steps = sums["steps"] - sums["skipped"]
    summary = {key: float(value) for key, value in metrics.summarize(sums).items()}
    for key in ("gradient_norm", "learning_rate"):
        summary[key] = sums[key] / steps if steps else math.nan
    return summary


def _replica_part(batch, replica_id, local_replicas):
    """Returns a host's rows that belong to one replica, with static shape."""
    if local_replicas == 1:
        return batch
    targets, _ = targets_and_weights(batch)
    size = targets.shape[0] // local_replicas
    start = replica_id % local_replicas * size
    return {
        key: tf.slice(
            value,
            [start] + [0] * (value.shape.rank - 1),
            [size, *value.shape[1:]],
        )
        for key, value in batch.items()
    }


def _count_tokens(batch):
    """Returns the number of tokens (or images) that are not padding, float32."""
    return tf.add_n(
        [tf.reduce_sum(tf.cast(x > 0, tf.float32)) for x in throughput_tensors(batch)]
    )
