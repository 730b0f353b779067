"""The training loop, top to bottom."""

import os
import time
from contextlib import ExitStack, nullcontext

import keras

from remixer_tf.checkpoints.whole_folder import remove_abandoned
from remixer_tf.checkpoints.writing import Checkpoints
from remixer_tf.layers.checks import check_factories
from remixer_tf.training.checks import (
    check_evaluations,
    check_options,
    folder_of_run,
)
from remixer_tf.training.evaluator import Evaluator
from remixer_tf.training.hooks import (
    Evaluating,
    Logging,
    OwnFolder,
    Saving,
    Stopping,
)
from remixer_tf.training.run_lock import RunLock
from remixer_tf.training.run_log import RunLog
from remixer_tf.training.schedule import Schedule
from remixer_tf.training.skipped_steps import SkippedSteps
from remixer_tf.training.start import Start
from remixer_tf.training.stop_signal import StopSignal
from remixer_tf.training.timed_batches import TimedBatches
from remixer_tf.training.totals import Totals


def train(
    run,
    model_dir,
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

    That may be one of step 0, with the weights that `remixer_tf import_weights` put
    there.

    Writes below `model_dir`: checkpoints/<step>, tensorboard/train, metrics.jsonl,
    eval, best.json, and train_summary.json at the end.

    Args:
        run: a `Run`, whose model, precision and engine count.
        model_dir: folder of the run, made if it is missing. All hosts share it.
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
        micro_batches, clip_norm, loss_fn, auxiliary_loss_weights: see `Engine.build`.
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
        SystemExit: SIGTERM came. Everything is saved. The exit code is
            `stop_signal.PREEMPTED`.
        KeyboardInterrupt: Ctrl-C, or SIGINT, came. Everything is saved.
    """
    start_time = time.perf_counter()
    schedule = Schedule(train_steps, steps_per_call, log_period, checkpoint_period)
    check_factories(model=run.model, optimizer=optimizer, dataset=dataset)
    check_options(
        keep_checkpoints=keep_checkpoints,
        keep_period=keep_period,
        seed=seed,
        micro_batches=micro_batches,
        clip_norm=clip_norm,
        max_skipped_steps=max_skipped_steps,
    )
    check_evaluations(evaluations, best)
    schedule.check(evaluations)
    if not dry_run:
        remove_abandoned(os.path.dirname(os.path.abspath(model_dir)))
    with (
        nullcontext() if dry_run else folder_of_run(model_dir),
        nullcontext(run.engine()) as engine,  # First: several hosts connect here.
        StopSignal(alone=engine.host.count == 1) as signal,
        RunLock(model_dir, engine.host.index == 0 and not dry_run) as lock,
        ExitStack() as undo,  # What a start that fails has written.
    ):
        host, shard = engine.host, engine.host.shard_info
        keras.utils.set_random_seed(seed)
        data = dataset(seed=seed, steps_per_call=steps_per_call, shard_info=shard)
        batches = TimedBatches(data, engine)
        engine.build(
            run.model,
            optimizer,
            run.dtype_policy,
            loss_fn=loss_fn,
            auxiliary_loss_weights=auxiliary_loss_weights,
            micro_batches=micro_batches,
            clip_norm=clip_norm,
        )
        checkpoints = Checkpoints(
            model_dir,
            engine.variables,
            engine.values,
            batches.iterator,
            keep=keep_checkpoints,
            keep_period=keep_period,
            host=host,
            checkpoint_format=engine.checkpoint_format,
        )
        start = Start(model_dir, engine, batches, checkpoints, train_steps, dry_run)
        start.restore(initial_checkpoint, restart_data_at, undo)
        evaluator = Evaluator(
            model_dir,
            engine,
            evaluations,
            best,
            checkpoints,
            start.progress,
            schedule,
            evaluation_bindings,
        )
        if start.nothing_to_do(evaluator):
            return None
        decodes = any(getattr(e, "decodes", False) for e in evaluations)
        overview = start.describe(run.dtype_policy, layer_checks, decodes)
        if dry_run:
            return None
        undo.pop_all()
        text, hyperparameters = start.write_configuration(configuration)
        log = RunLog(model_dir, overview, batches.first, host, examples_per_epoch)
        log.start(start.step, text, hyperparameters)
        skipped = SkippedSteps(model_dir, max_skipped_steps, text, host)
        return _take_steps(
            start, schedule, evaluator, skipped, log, signal, lock, start_time
        )


def _take_steps(start, schedule, evaluator, skipped, log, signal, lock, start_time):
    """Takes the steps that are left, and returns the summary."""
    engine, batches, checkpoints = start.engine, start.batches, start.checkpoints
    step, progress = start.step, start.progress
    totals = Totals(engine, batches, skipped, checkpoints.summary, start_time)
    saving = Saving(schedule, checkpoints, evaluator, totals, skipped)
    evaluating = Evaluating(evaluator, signal, totals.speed)
    hooks = [
        skipped,
        totals,
        progress,
        OwnFolder(checkpoints, lock),
        Logging(schedule, engine, totals, skipped, progress, log),
        Stopping(signal, skipped, saving, engine.host),
        saving,
        evaluating,
    ]
    with progress, log, checkpoints, signal.held():
        while step < schedule.train_steps and not evaluating.stops_early:
            batch = next(batches)
            metrics = engine.step(batch, stop=signal.received is not None)
            step += schedule.steps_per_call
            for hook in hooks:
                hook.after_call(step, batch, metrics)
    checkpoints.wait()
    engine.host.barrier()
    summary = totals.summary(step)
    start.finish(step, summary, evaluating.stops_early)
    return summary
