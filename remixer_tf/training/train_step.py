"""The train step: forward, backward, all-reduce, update."""

import tensorflow as tf

from remixer_tf import losses, metrics


class TrainStep:
    """Several optimizer steps in one `tf.function` call, on any strategy.

    The objective of one step is the mean over all real target tokens of the
    global batch, whichever replica they fall to:

        J = sum_r (loss_r + z_loss_r) / sum_r weight_r

    The whole batch goes to every replica, and replica r takes the rows
    r * batch / R ... (r + 1) * batch / R, so that one and R replicas compute the
    same numbers. Only forward and backward run under XLA: a strategy's
    collectives and the update of mirrored variables cannot be compiled with them.
    Gradients are made dense before the optimizer sees them, since Keras'
    optimizers square each slice of a sparse gradient, and not their sum.

    Args:
      model: a built `keras.Model`, `model(batch, training=True)` giving logits
        [batch, target_length, vocab_size].
      optimizer: a `keras.optimizers.Optimizer`; it is built here if it is not yet.
      strategy: the strategy under whose scope both were made.
      z_loss: coefficient of the penalty on log(Z)**2.
      label_smoothing: probability mass taken from the target class.
      jit_compile: whether XLA compiles forward and backward.

    Call arguments:
      superbatch: dict of int32 tensors [steps, batch, length].

    Returns of a call:
      dict of float32 scalars, each a sum over the steps: the ones of
      `losses.cross_entropy`, 'gradient_norm' (global, of the reduced gradient),
      'learning_rate', 'tokens' (inputs and targets that are not padding) and
      'steps'. `summarize` turns them into means.
    """

    def __init__(
        self,
        model,
        optimizer,
        strategy,
        *,
        z_loss=0.0,
        label_smoothing=0.0,
        jit_compile=False,
    ):
        self._model = model
        self._optimizer = optimizer
        self._strategy = strategy
        self._loss_options = {"z_loss": z_loss, "label_smoothing": label_smoothing}
        self._gradients = tf.function(
            self._forward_backward, jit_compile=jit_compile, autograph=False
        )
        self._run_steps = tf.function(self._loop, autograph=False)
        if not optimizer.built:
            with strategy.scope():
                optimizer.build(model.trainable_variables)

    def __call__(self, superbatch):
        num_replicas = self._strategy.num_replicas_in_sync
        batch_size = superbatch["decoder_target_tokens"].shape[1]
        if batch_size % num_replicas:
            raise ValueError(
                f"A batch of {batch_size} examples does not divide among "
                f"{num_replicas} replicas. Set a batch size that is a multiple of "
                f"{num_replicas}."
            )
        return self._run_steps(superbatch)

    def _loop(self, superbatch):
        """Runs one step for each index of the leading axis and adds the sums up."""

        def step(index, sums):
            batch = {key: value[index] for key, value in superbatch.items()}
            learning_rate = tf.cast(self._optimizer.learning_rate, tf.float32)
            per_replica = self._strategy.run(self._replica_step, (batch,))
            new = self._strategy.reduce("SUM", per_replica, axis=None)
            new |= {"learning_rate": learning_rate, "steps": tf.constant(1.0)}
            return {key: sums[key] + new[key] for key in sums} if sums else new

        num_steps = superbatch["decoder_target_tokens"].shape[0]
        if num_steps == 1:
            return step(0, {})
        _, sums = tf.while_loop(
            lambda index, _: index < num_steps,
            lambda index, sums: (index + 1, step(index, sums)),
            (tf.constant(0), {key: tf.constant(0.0) for key in _SUMS}),
            maximum_iterations=num_steps,
        )
        return sums

    def _replica_step(self, global_batch):
        """One step of one replica; returns its part of the sums."""
        context = tf.distribute.get_replica_context()
        num_replicas = context.num_replicas_in_sync
        batch = _replica_part(
            global_batch, context.replica_id_in_sync_group, num_replicas
        )
        weight = tf.reduce_sum(tf.cast(batch["decoder_loss_weights"], tf.float32))
        weight = tf.math.maximum(context.all_reduce("SUM", weight), 1.0)
        sums, gradients = self._gradients(batch, weight)
        gradients = context.all_reduce("SUM", gradients)
        norm = tf.linalg.global_norm(gradients)
        # `apply` sums over the replicas once more.
        if num_replicas > 1:
            gradients = [gradient / num_replicas for gradient in gradients]
        self._optimizer.apply(gradients, self._model.trainable_variables)
        return sums | {
            "tokens": _count_tokens(batch),
            "gradient_norm": norm / num_replicas,
        }

    def _forward_backward(self, batch, weight):
        """Returns the loss sums and dense gradients of the objective."""
        variables = [v.value for v in self._model.trainable_variables]
        with tf.GradientTape() as tape:
            logits = self._model(batch, training=True)
            sums = losses.cross_entropy(
                logits,
                batch["decoder_target_tokens"],
                batch["decoder_loss_weights"],
                **self._loss_options,
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


_SUMS = (
    "loss",
    "z_loss",
    "correct",
    "weight",
    "tokens",
    "gradient_norm",
    "learning_rate",
    "steps",
)


def summarize(sums):
    """Returns the means that a log line shows, as floats, of summed call results.

    Args:
      sums: what one call of a `TrainStep` returned, or several of them added up.

    Returns:
      dict of floats: loss, z_loss, accuracy and perplexity per target token, and
      gradient_norm and learning_rate per step.
    """
    sums = {key: float(value) for key, value in sums.items()}
    summary = {key: float(value) for key, value in metrics.summarize(sums).items()}
    for key in ("gradient_norm", "learning_rate"):
        summary[key] = sums[key] / sums["steps"]
    return summary


def _replica_part(batch, replica_id, num_replicas):
    """Returns the rows of `batch` that belong to one replica, with static shape."""
    if num_replicas == 1:
        return batch
    size = batch["decoder_target_tokens"].shape[0] // num_replicas
    start = replica_id * size
    return {
        key: tf.slice(
            value,
            [start] + [0] * (value.shape.rank - 1),
            [size, *value.shape[1:]],
        )
        for key, value in batch.items()
    }


def _count_tokens(batch):
    """Returns the number of inputs and targets that are not padding, float32."""
    return tf.add_n(
        [
            tf.reduce_sum(tf.cast(batch[key] > 0, tf.float32))
            for key in ("encoder_input_tokens", "decoder_target_tokens")
            if key in batch
        ]
    )
