"""The training loop, top to bottom."""

import json
import os
import time

import keras
import numpy as np
import tensorflow as tf

from remixer_tf.checkpoints.vocabularies import remember_vocabularies
from remixer_tf.checkpoints.writing import Checkpoints
from remixer_tf.layers.arguments import check_factories, check_integers, check_numbers
from remixer_tf.objectives.batches import targets_and_weights, throughput_unit
from remixer_tf.objectives.metrics import summarize_steps
from remixer_tf.training import experts
from remixer_tf.training.overview import Overview
from remixer_tf.training.progress import Progress, Speed, format_seconds
from remixer_tf.training.run_lock import RunLock
from remixer_tf.training.run_log import RunLog
from remixer_tf.training.tensorflow_engine import TensorFlowEngine
from remixer_tf.training.watch import PREEMPTED, FiniteWatch, StopSignal


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
    keep_period=None,
    seed=0,
    dtype_policy="float32",
    engine=TensorFlowEngine,
    micro_batches=1,
    clip_norm=None,
    max_skipped_steps=0,
    loss_fn=None,
    auxiliary_loss_weights=None,
    initial_checkpoint=None,
    restart_data_at=None,
    evaluations=(),
    best=None,
    examples_per_epoch=None,
    configuration=None,
    dry_run=False,
):
    """Trains a model, going on from the newest checkpoint in `model_dir`.

    That may be one of step 0, with the weights that `remixer_tf.import_weights` put
    there.

    Writes below `model_dir`: checkpoints/<step>, tensorboard/train, eval, best.json,
    and train_summary.json at the end.

    Args:
        model_dir: folder of the run, made if it is missing. All hosts share it.
        model: a factory: `model()` is a `keras.Model`, `model().build()` makes all its
            variables.
        optimizer: a factory of a `keras.optimizers.Optimizer`.
        dataset: a factory: `dataset(seed=, steps_per_call=, shard_info=)` is an endless
            `tf.data.Dataset` of dicts of [steps_per_call, batch, ...], as the model and
            `targets_and_weights` read them; `batch` is this host's part of the global
            batch.
        train_steps: the step at which training ends, counted from the start of the run.
        steps_per_call: steps in one `tf.function` call. It divides `train_steps` and
            all periods.
        log_period: steps between log lines and TensorBoard scalars.
        checkpoint_period: steps between checkpoints; the last step is always saved.
        keep_checkpoints: how many of the newest checkpoints stay.
        keep_period: checkpoints of steps that it divides stay for good; None for none.
        seed: of initial weights, dropout and data order.
        dtype_policy: 'float32' or 'mixed_bfloat16' (variables stay float32).
        engine: a factory of an `Engine`, which runs the model.
        micro_batches, clip_norm, loss_fn, auxiliary_loss_weights: see `TrainStep`.
        max_skipped_steps: how many steps whose loss or gradient is not finite may be
            skipped; one more ends the run.
        initial_checkpoint: a function `initial_checkpoint(model)` that sets weights
            when the run starts from scratch, such as `InitialCheckpoint`; None for
            none.
        restart_data_at: the step of a checkpoint after which the data starts anew, for
            going on with another task, batch size or lengths: weights, optimizer and
            step stay. Checkpoints of other steps continue exactly, as do all with None.
        evaluations: list of `LossEvaluation`, `DecodedEvaluation`, `ImageEvaluation`
            and `Pictures`.
        best: a `Best`: that checkpoint stays, and training may stop early; None for
            none.
        examples_per_epoch: int, to tell epochs; None does not tell them.
        configuration: a function called when everything is built, that returns the
            operative gin as text, and a dict of numbers and strings as hyperparameters
            for TensorBoard; None for nothing. The text becomes operative_config.gin.
        dry_run: whether to return before the first step, with one batch read.

    Returns:
        dict, the contents of train_summary.json, or None if there was nothing to do.

    Raises:
        ValueError: an argument does not fit, the checkpoint is of another model, or the
            data holds a token id that the model's `vocab_size` does not reach, or a
            class that its `num_classes` does not.
        FloatingPointError: loss or gradient is not finite.
        OSError: a checkpoint could not be written, none could be read, or another run
            lives in `model_dir`.
        SystemExit: SIGTERM came. Everything is saved; the code is `PREEMPTED`.
    """
    start_time = time.perf_counter()
    check_factories(model=model, optimizer=optimizer, dataset=dataset)
    check_integers(keep_checkpoints=keep_checkpoints, micro_batches=micro_batches)
    check_integers(0, seed=seed, max_skipped_steps=max_skipped_steps)
    if clip_norm is not None:
        check_numbers(clip_norm=clip_norm)
    _check_evaluations(evaluations, best)
    _check_arguments(
        steps_per_call=steps_per_call,
        train_steps=train_steps,
        log_period=log_period,
        checkpoint_period=checkpoint_period,
        **{f"period of evaluation {i}": e.period for i, e in enumerate(evaluations)},
    )
    _check_writable(model_dir)
    engine = engine()  # First: several hosts connect here.
    host = engine.host
    with RunLock(model_dir, enabled=host.index == 0 and not dry_run) as lock:
        # Data, model, optimizer.
        keras.utils.set_random_seed(seed)
        data = dataset(
            seed=seed, steps_per_call=steps_per_call, shard_info=engine.shard_info
        )
        iterator = iter(data)
        engine.build(
            model,
            optimizer,
            dtype_policy,
            loss_fn=loss_fn,
            auxiliary_loss_weights=auxiliary_loss_weights,
            micro_batches=micro_batches,
            clip_norm=clip_norm,
        )

        # State: the run's own checkpoint, else an initial one, else scratch.
        checkpoints = Checkpoints(
            model_dir,
            engine.variables,
            engine.values,
            iterator,
            keep=keep_checkpoints,
            keep_period=keep_period,
            host=host,
        )
        step = checkpoints.restore(restart_data_at)
        progress = Progress(step, train_steps, silent=host.index > 0)
        from_scratch = not step and not checkpoints.has_start
        if from_scratch:
            _check_no_results(model_dir)
            if initial_checkpoint:
                progress.message(initial_checkpoint(engine.model))

        vocabularies = getattr(data, "vocabularies", None)
        if vocabularies and host.index == 0 and not dry_run:
            remember_vocabularies(model_dir, vocabularies, not from_scratch)
        host.barrier()
        for evaluation in evaluations:
            evaluation.check(model_dir, evaluations)

        def due_evaluations():
            return [
                evaluation
                for evaluation in evaluations
                if step and (step % evaluation.period == 0 or step == train_steps)
            ]

        def evaluate():
            """Runs what is due at `step`, and says whether to stop early."""
            due = due_evaluations()
            for evaluation in due:
                if host.index == 0:
                    with progress.paused():
                        evaluation.run(model_dir, engine, step)
            if due:
                host.barrier()
            if best is None:
                return False
            checkpoints.best_step, value, stop = best.find(
                model_dir, evaluations, engine.model
            )
            if due and host.index == 0 and value is not None:
                best.write(model_dir, checkpoints.best_step, value)
            return stop

        stopped_early = False if dry_run else evaluate()
        if step >= train_steps or stopped_early:
            progress.message(
                f"{model_dir} is at step {step} of {train_steps}"
                f"{', stopped early' if stopped_early else ''}: nothing to do. Set "
                f"more {'patience' if stopped_early else 'train_steps'} to go on."
            )
            return None

        # What will run.
        batch = next(iterator)
        _check_ids(batch, engine.model)
        overview = Overview(engine, dtype_policy)
        over_length = getattr(data, "over_length", None)
        progress.message(overview.text(batch, over_length))
        if from_scratch:
            progress.message(f"starting {model_dir} from scratch")
        elif step == restart_data_at:
            progress.message(f"continuing from step {step}; the data starts anew")
        else:
            progress.message(f"continuing from step {step}")
        if dry_run:
            progress.message("dry run: nothing was trained or written")
            return None
        summary_path = os.path.join(model_dir, "train_summary.json")
        if host.index == 0 and tf.io.gfile.exists(summary_path):
            tf.io.gfile.remove(summary_path)  # Who sees it takes the run for ended.
        text, hyperparameters = configuration() if configuration else ("", {})
        if text and host.index == 0:
            path = os.path.join(model_dir, "operative_config.gin")
            with tf.io.gfile.GFile(path, "w") as file:
                file.write(text)

        # Steps.
        log = RunLog(
            model_dir,
            overview,
            batch_size=(
                targets_and_weights(batch)[0].shape[1] * engine.shard_info.num_shards
            ),
            examples_per_epoch=examples_per_epoch,
            enabled=host.index == 0,
        )
        log.start(step, text, hyperparameters)
        watch = FiniteWatch(model_dir, max_skipped_steps, text)
        speed = Speed(throughput_unit(batch))
        known_shapes = set()
        sums = None
        with progress, log, checkpoints, StopSignal() as signal:
            while step < train_steps and not stopped_early:
                start = time.perf_counter()
                if batch is None:
                    batch = next(iterator)
                waited = time.perf_counter() - start
                shapes = tuple(tuple(value.shape) for value in batch.values())
                if shapes not in known_shapes:
                    _check_ids(batch, engine.model)
                new = engine.step(batch, stop=signal.received)
                step += steps_per_call
                watch.add(step, batch, new)
                if shapes in known_shapes:
                    flops = engine.cost(batch).flops * steps_per_call
                    speed.step(steps_per_call, flops, waited)
                else:  # The call has traced and compiled.
                    known_shapes.add(shapes)
                    speed.skip(time.perf_counter() - start, float(new["tokens"]))
                batch = None
                sums = {key: sums[key] + new[key] for key in new} if sums else new
                progress.advance(step)
                checkpoints.check()
                lock.check()

                if step % log_period == 0 or step == train_steps:
                    watch.flush()
                    values = summarize_steps(sums)
                    values |= speed.lap(float(sums["tokens"]))
                    progress.report(step, values)
                    if problem := experts.warning(values):
                        progress.message(problem)
                    log.scalars(step, values, engine, watch.skipped)
                    sums = None

                pause = time.perf_counter()
                due = step == train_steps or step % checkpoint_period == 0
                if due or due_evaluations() or watch.stop:
                    watch.flush()
                    checkpoints.save(step)
                if watch.stop:
                    checkpoints.wait()
                    progress.message(
                        f"SIGTERM: saved step {step}. The same command goes on from it."
                    )
                    raise SystemExit(PREEMPTED)
                if due_evaluations():
                    stopped_early = evaluate()
                speed.skip(time.perf_counter() - pause)
        checkpoints.wait()
        host.barrier()
        if sums:  # Stopped between two log lines.
            values = summarize_steps(sums)

        summary = {
            "parameters": overview.parameters,
            "steps": step,
            **{
                name: values[name]
                for name in ("objective", "loss", "accuracy")
                if name in values
            },
            **speed.mean(),
            "skipped_steps": watch.skipped,
            "seconds": time.perf_counter() - start_time,
        }
        if host.index == 0:
            with tf.io.gfile.GFile(summary_path, "w") as file:
                json.dump(summary, file, indent=2)
        progress.message(
            f"{'stopped early' if stopped_early else 'trained'} at step {step} after "
            f"{format_seconds(summary['seconds'])}; checkpoints are in {model_dir}"
        )
        return summary


def _check_evaluations(evaluations, best):
    """Raises ValueError unless it is a list of evaluations, and a `Best` or None."""
    if not isinstance(evaluations, (list, tuple)) or not all(
        hasattr(evaluation, "period") for evaluation in evaluations
    ):
        raise ValueError(
            "evaluations must be a list (in gin: [@LossEvaluation(), ...], each with "
            f"its brackets). Received: evaluations={evaluations!r}"
        )
    if best is not None and not hasattr(best, "metric"):
        raise ValueError(f"best must be None or @Best(). Received: best={best!r}")


def _check_arguments(*, steps_per_call, **periods):
    """Raises ValueError unless all numbers fit together."""
    check_integers(steps_per_call=steps_per_call, **periods)
    for name, value in periods.items():
        if value % steps_per_call:
            raise ValueError(
                f"{name}={value} is not a multiple of steps_per_call={steps_per_call}. "
                "Steps are run in groups of steps_per_call: change one of the two."
            )


def _check_ids(superbatch, model):
    """Raises ValueError if the model lacks a token, or a class, of the data."""
    for key, value in superbatch.items():
        if key.endswith("_tokens"):
            what, size = "token id", "vocab_size"
        elif key == "labels" and value.dtype.is_integer:
            what, size = "class", "num_classes"
        else:
            continue
        limit, largest = getattr(model, size, None), int(np.max(value))
        if limit is not None and largest >= limit:
            raise ValueError(
                f"The data holds the {what} {largest}, but the model's {size} is "
                f"{limit}. Set {size.upper()} to {largest + 1} at least."
            )


def _check_writable(model_dir):
    """Makes the folder of the run.

    Raises:
        OSError: nothing can be written there.
    """
    try:
        tf.io.gfile.makedirs(model_dir)
        path = os.path.join(model_dir, f".writable-{os.getpid()}")
        with tf.io.gfile.GFile(path, "w") as file:
            file.write("x")
        tf.io.gfile.remove(path)
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "message", error)
        raise OSError(
            f"Nothing can be written to --model_dir {model_dir}: {reason}. Choose "
            "another folder, or make room."
        ) from None


def _check_no_results(model_dir):
    """Raises ValueError if there are evaluations of a run that is not there."""
    if tf.io.gfile.exists(os.path.join(model_dir, "eval")):
        raise ValueError(
            f"{model_dir} holds evaluations of an earlier run, and no checkpoint to "
            "go on from: they would count as this run's. Move the folder away, or set "
            "another --model_dir."
        )
