"""The training loop, top to bottom."""

import json
import os
import time
from contextlib import ExitStack, nullcontext

import keras
import tensorflow as tf

from remixer_tf.checkpoints.vocabularies import (
    forget_vocabularies,
    name_copies,
    remember_vocabularies,
)
from remixer_tf.checkpoints.whole_folder import remove_abandoned
from remixer_tf.checkpoints.writing import Checkpoints
from remixer_tf.engines.backend_engine import backend_engine
from remixer_tf.layers.arguments import check_factories, check_integers, check_numbers
from remixer_tf.objectives.batches import targets_and_weights
from remixer_tf.training.changes import write_configuration
from remixer_tf.training.checks import (
    check_evaluations,
    check_ids,
    check_no_results,
    check_periods,
    check_vocabulary_size,
    folder_of_run,
)
from remixer_tf.training.evaluator import Evaluator
from remixer_tf.training.layer_checks import check_own_layers
from remixer_tf.training.metrics_file import remove_metrics_after
from remixer_tf.training.overview import Overview
from remixer_tf.training.progress import Progress, format_seconds
from remixer_tf.training.run_lock import RunLock
from remixer_tf.training.run_log import RunLog
from remixer_tf.training.step_loop import StepLoop
from remixer_tf.training.watch import FiniteWatch, StopSignal


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
    engine=backend_engine,
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
    evaluation_bindings=None,
    dry_run=False,
    layer_checks=True,
):
    """Trains a model, going on from the newest checkpoint in `model_dir`.

    That may be one of step 0, with the weights that `remixer_tf.import_weights` put
    there.

    Writes below `model_dir`: checkpoints/<step>, tensorboard/train, metrics.jsonl,
    eval, best.json, and train_summary.json at the end.

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
        steps_per_call: steps in one call of the engine. It divides `train_steps` and
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
            for TensorBoard; None for nothing. The text becomes operative_config.gin,
            see `write_configuration`.
        evaluation_bindings: dictionary of str, the bindings of gin that can change an
            evaluation's result: one that was made with others does not count; None for
            none.
        dry_run: whether to return before the first step, with one batch read.
        layer_checks: whether to try layers that are not of this package, see
            `check_own_layers`.

    Returns:
        dict, the contents of train_summary.json, or None if there was nothing to do.

    Raises:
        ValueError: an argument does not fit, the checkpoint is of another model, or the
            vocabulary has a token id that the model's `vocab_size` does not reach, or
            the data a class that its `num_classes` does not.
        FloatingPointError: loss or gradient is not finite.
        OSError: a checkpoint could not be written, none could be read, or another run
            lives in `model_dir`.
        SystemExit: SIGTERM came. Everything is saved; the code is `watch.PREEMPTED`.
        KeyboardInterrupt: Ctrl-C, or SIGINT, came. Everything is saved.
    """
    start_time = time.perf_counter()
    check_factories(model=model, optimizer=optimizer, dataset=dataset)
    check_integers(keep_checkpoints=keep_checkpoints, micro_batches=micro_batches)
    check_integers(0, seed=seed, max_skipped_steps=max_skipped_steps)
    if keep_period is not None:
        check_integers(keep_period=keep_period)
    if clip_norm is not None:
        check_numbers(clip_norm=clip_norm)
    check_evaluations(evaluations, best)
    if best is not None:
        best.check(evaluations)
    check_periods(
        steps_per_call=steps_per_call,
        train_steps=train_steps,
        log_period=log_period,
        checkpoint_period=checkpoint_period,
        **{f"period of evaluation {i}": e.period for i, e in enumerate(evaluations)},
    )
    if not dry_run:
        remove_abandoned(os.path.dirname(os.path.abspath(model_dir)))
    with (
        nullcontext() if dry_run else folder_of_run(model_dir),
        nullcontext(engine()) as engine,  # First: several hosts connect here.
        StopSignal() as signal,
        RunLock(model_dir, engine.host.index == 0 and not dry_run) as lock,
        ExitStack() as undo,  # What a start that fails has written.
    ):
        host = engine.host
        # Data, model, optimizer.
        keras.utils.set_random_seed(seed)
        data = dataset(
            seed=seed, steps_per_call=steps_per_call, shard_info=host.shard_info
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
            checkpoint_format=engine.checkpoint_format,
        )
        step = checkpoints.restore(restart_data_at, clean=not dry_run)
        progress = Progress(step, train_steps, silent=host.index > 0)
        from_scratch = not step and not checkpoints.has_start
        if from_scratch:
            check_no_results(model_dir)
            if initial_checkpoint:
                progress.message(initial_checkpoint(engine.model))

        vocabularies = getattr(data, "vocabularies", None)
        check_vocabulary_size(vocabularies or {}, engine.model)
        if vocabularies and host.index == 0 and not dry_run:
            new = remember_vocabularies(model_dir, vocabularies, not from_scratch)
            if from_scratch:
                undo.callback(forget_vocabularies, model_dir, new)
        host.barrier()
        evaluator = Evaluator(
            model_dir,
            engine,
            evaluations,
            best,
            checkpoints,
            progress,
            train_steps,
            evaluation_bindings,
        )
        evaluator.check()
        if host.index == 0 and not dry_run:
            remove_metrics_after(model_dir, step)
        stopped_early = not dry_run and evaluator.run(step, resumed=True)
        summary_path = os.path.join(model_dir, "train_summary.json")
        if step >= train_steps or stopped_early:
            if host.index == 0 and not dry_run and not tf.io.gfile.exists(summary_path):
                # A kill after the last step left it out.
                _write_summary(summary_path, {"steps": step, **checkpoints.summary})
            progress.message(
                f"{model_dir} is at step {step} of {train_steps}"
                f"{', stopped early' if stopped_early else ''}: nothing to do. Set "
                f"more {'patience' if stopped_early else 'train_steps'} to go on."
            )
            return None

        # What will run.
        batch = next(iterator)
        check_ids(batch, engine.model)
        if layer_checks:
            decodes = any(getattr(e, "decodes", False) for e in evaluations)
            check_own_layers(engine.model, batch, decodes)
        overview = Overview(engine, dtype_policy)
        facts = (getattr(data, name, None) for name in ("over_length", "caches"))
        progress.message(overview.text(batch, *facts))
        if from_scratch:
            progress.message(f"starting {model_dir} from scratch")
        elif step == restart_data_at:
            progress.message(f"continuing from step {step}; the data starts anew")
        else:
            progress.message(f"continuing from step {step}")
        if dry_run:
            progress.message("dry run: nothing was trained or written")
            return None
        undo.pop_all()
        if host.index == 0 and tf.io.gfile.exists(summary_path):
            tf.io.gfile.remove(summary_path)  # Who sees it takes the run for ended.
        text, hyperparameters = configuration() if configuration else ("", {})
        if text and host.index == 0:
            text = name_copies(text, model_dir)
            if changes := write_configuration(model_dir, text, step):
                progress.message(changes)

        # Steps.
        log = RunLog(
            model_dir,
            overview,
            batch_size=(
                targets_and_weights(batch)[0].shape[1] * host.shard_info.num_shards
            ),
            examples_per_epoch=examples_per_epoch,
            enabled=host.index == 0,
        )
        log.start(step, text, hyperparameters)
        watch = FiniteWatch(model_dir, max_skipped_steps, text, host)
        with progress, log, checkpoints, signal.held():
            loop = StepLoop(
                engine,
                iterator,
                step,
                train_steps=train_steps,
                steps_per_call=steps_per_call,
                log_period=log_period,
                checkpoint_period=checkpoint_period,
                progress=progress,
                log=log,
                watch=watch,
                checkpoints=checkpoints,
                evaluator=evaluator,
                lock=lock,
                signal=signal,
                start_time=start_time,
                parameters=overview.parameters,
            )
            stopped_early = loop.run(batch)
        checkpoints.wait()
        host.barrier()
        summary = loop.summary()
        if host.index == 0:
            _write_summary(summary_path, summary)
        progress.message(
            f"{'stopped early' if stopped_early else 'trained'} at step {loop.step} "
            f"after {format_seconds(summary['seconds'])}; checkpoints are in "
            f"{model_dir}"
        )
        return summary


def _write_summary(path, summary):
    with tf.io.gfile.GFile(path + ".writing", "w") as file:
        json.dump(summary, file, indent=2)
    tf.io.gfile.rename(path + ".writing", path, overwrite=True)
