"""The training loop, top to bottom."""

import json
import math
import os
import time

import keras
import tensorflow as tf

from remixer_tf.models.build import build_model
from remixer_tf.training import train_step as train_step_lib
from remixer_tf.training.checkpoints import Checkpoints
from remixer_tf.training.progress import Progress, Speed, format_seconds
from remixer_tf.training.strategy import get_strategy


def train(
    model_dir,
    model,
    optimizer,
    dataset,
    *,
    train_steps,
    steps_per_call=1,
    log_period=100,
    checkpoint_period=1000,
    keep_checkpoints=3,
    seed=0,
    dtype_policy="float32",
    jit_compile=None,
    strategy="single",
    z_loss=1e-4,
    label_smoothing=0.0,
    write_configuration=None,
):
    """Trains a model, going on from the newest checkpoint in `model_dir`.

    Writes below `model_dir`: checkpoints/checkpoint-<step>, tensorboard/train, and
    train_summary.json at the end.

    Args:
      model_dir: folder of the run, made if it is missing.
      model: a factory: `model()` is a `keras.Model`, `model().build()` makes all its
        variables.
      optimizer: a factory of a `keras.optimizers.Optimizer`.
      dataset: a factory: `dataset(seed=, steps_per_call=)` is an endless
        `tf.data.Dataset` of dicts of int32 [steps_per_call, batch, length].
      train_steps: the step at which training ends, counted from the start of the run.
      steps_per_call: steps in one `tf.function` call. It divides `train_steps` and all
        periods.
      log_period: steps between log lines and TensorBoard scalars.
      checkpoint_period: steps between checkpoints; the last step is always saved.
      keep_checkpoints: how many of the newest checkpoints stay.
      seed: of initial weights, dropout and data order.
      dtype_policy: 'float32' or 'mixed_bfloat16' (variables stay float32).
      jit_compile: whether XLA compiles forward and backward; None for on accelerators.
      strategy: see `get_strategy`.
      z_loss: coefficient of log(Z)**2 in the objective.
      label_smoothing: see `losses.cross_entropy`.
      write_configuration: a function called with `model_dir` when everything is built,
        before the first step; None for nothing.

    Returns:
      dict, the contents of train_summary.json, or None if there was nothing to do.

    Raises:
      ValueError: an argument does not fit, the checkpoint is of another model, or the
        data holds a token id that the model's `vocab_size` does not reach.
      FloatingPointError: loss or gradient is not finite.
    """
    start_time = time.perf_counter()
    _check_arguments(
        steps_per_call=steps_per_call,
        train_steps=train_steps,
        log_period=log_period,
        checkpoint_period=checkpoint_period,
    )
    if jit_compile is None:
        jit_compile = bool(tf.config.list_physical_devices("GPU"))

    # Data, model, optimizer.
    keras.utils.set_random_seed(seed)
    strategy = get_strategy(strategy)
    data = dataset(seed=seed, steps_per_call=steps_per_call)
    iterator = iter(data)
    with strategy.scope():
        model = build_model(model, dtype_policy)
        optimizer = optimizer()
    train_step = train_step_lib.TrainStep(
        model,
        optimizer,
        strategy,
        z_loss=z_loss,
        label_smoothing=label_smoothing,
        jit_compile=jit_compile,
    )

    # State: the run's own checkpoint, else scratch.
    checkpoints = Checkpoints(
        model_dir, model, optimizer, iterator, keep=keep_checkpoints
    )
    step = checkpoints.restore()
    progress = Progress(step, train_steps)
    if step >= train_steps:
        progress.message(
            f"{model_dir} is at step {step} of {train_steps}: nothing to do. Set more "
            "train_steps to go on."
        )
        return None
    parameters = sum(math.prod(v.shape) for v in model.trainable_variables)
    progress.message(
        f"{model.name}: {parameters:,} parameters, {dtype_policy}, XLA "
        f"{'on' if jit_compile else 'off'}, {strategy.num_replicas_in_sync} replica(s) "
        f"on {'GPU' if tf.config.list_physical_devices('GPU') else 'CPU'}"
    )
    progress.message(_describe(data.element_spec))
    progress.message(
        f"continuing from step {step}" if step else f"starting {model_dir} from scratch"
    )
    if write_configuration:
        write_configuration(model_dir)

    # Steps.
    writer = tf.summary.create_file_writer(
        os.path.join(model_dir, "tensorboard", "train")
    )
    speed = Speed()
    compiled = set()
    sums = None
    with progress, writer.as_default():
        while step < train_steps:
            superbatch = next(iterator)
            shapes = tuple(tuple(value.shape) for value in superbatch.values())
            if shapes not in compiled:
                _check_ids(superbatch, getattr(model, "vocab_size", None))
            call_time = time.perf_counter()
            new = train_step(superbatch)
            step += steps_per_call
            if shapes not in compiled:  # The call has traced and compiled.
                compiled.add(shapes)
                tokens = float(new["tokens"])
                speed.skip(time.perf_counter() - call_time, steps_per_call, tokens)
            sums = {key: sums[key] + new[key] for key in new} if sums else new
            progress.advance(step)

            if step % log_period == 0 or step == train_steps:
                values = train_step_lib.summarize(sums)
                _check_finite(values, step, model_dir)
                values |= speed.lap(float(sums["steps"]), float(sums["tokens"]))
                sums = None
                progress.report(step, values)
                for name, value in values.items():
                    tf.summary.scalar(name, value, step=step)

            if step % checkpoint_period == 0 or step == train_steps:
                if sums:
                    _check_finite(train_step_lib.summarize(sums), step, model_dir)
                save_time = time.perf_counter()
                checkpoints.save(step)
                speed.skip(time.perf_counter() - save_time)

    summary = {
        "parameters": parameters,
        "steps": step,
        **{name: values[name] for name in ("loss", "accuracy")},
        **speed.mean(),
        "seconds": time.perf_counter() - start_time,
    }
    with tf.io.gfile.GFile(os.path.join(model_dir, "train_summary.json"), "w") as file:
        json.dump(summary, file, indent=2)
    progress.message(
        f"trained to step {step} in {format_seconds(summary['seconds'])}; checkpoints "
        f"are in {model_dir}"
    )
    return summary


def _check_arguments(*, steps_per_call, **periods):
    """Raises ValueError unless all numbers fit together."""
    for name, value in {"steps_per_call": steps_per_call, **periods}.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be a positive integer. Received: {value!r}")
        if value % steps_per_call:
            raise ValueError(
                f"{name}={value} is not a multiple of steps_per_call={steps_per_call}. "
                "Steps are run in groups of steps_per_call: change one of the two."
            )


def _check_ids(superbatch, vocab_size):
    """Raises ValueError if the model has no embedding for a token of the data."""
    largest = max(
        int(tf.reduce_max(value))
        for key, value in superbatch.items()
        if key.endswith("_tokens")
    )
    if vocab_size is not None and largest >= vocab_size:
        raise ValueError(
            f"The data holds the token id {largest}, but the model's vocab_size is "
            f"{vocab_size}. Set VOCAB_SIZE to the vocabulary's size at least."
        )


def _check_finite(values, step, model_dir):
    """Raises FloatingPointError if loss or gradient norm is NaN or infinite."""
    if math.isfinite(values["loss"]) and math.isfinite(values["gradient_norm"]):
        return
    raise FloatingPointError(
        f"Before step {step} the loss or the gradient stopped being finite: loss "
        f"{values['loss']}, gradient norm {values['gradient_norm']}, learning rate "
        f"{values['learning_rate']:.3g}. Nothing was saved since; the last checkpoint "
        f"in {model_dir} is good. Try a smaller learning rate, more warm-up, or "
        "float32."
    )


def _describe(element_spec):
    """Returns the batch size and lengths in words."""
    steps, batch, targets = element_spec["decoder_target_tokens"].shape
    text = f"global batch {batch}, {steps} step(s) per call"
    if "encoder_input_tokens" in element_spec:
        inputs = element_spec["encoder_input_tokens"].shape[2]
        text += f", inputs {inputs or 'bucketed'}"
    return text + f", targets {targets or 'bucketed'}"
