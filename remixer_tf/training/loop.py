"""The training loop, top to bottom."""

import os
import time
from contextlib import ExitStack, contextmanager, nullcontext

import keras

from remixer_tf.checkpoints.whole_folder import remove_abandoned
from remixer_tf.checkpoints.writing import Checkpoints
from remixer_tf.errors import check_factories
from remixer_tf.imports import import_rest
from remixer_tf.objectives.objective import Objective
from remixer_tf.training.hooks import (
    Evaluating,
    OwnFolder,
    Profiling,
    Saving,
    SkippedSteps,
    Stopping,
)
from remixer_tf.training.logs import Logging, Totals
from remixer_tf.training.progress import Speed
from remixer_tf.training.run_folder import RunLock, folder_of_run
from remixer_tf.training.sending import Sending
from remixer_tf.training.session import Session
from remixer_tf.training.settings import Checkpointing
from remixer_tf.training.stop_signal import StopSignal
from remixer_tf.training.timed_batches import TimedBatches


def train(
    run,
    launch,
    dataset,
    optimizer,
    schedule,
    checkpointing=None,
    objective=None,
    evaluations=(),
):
    """Trains a model, or resumes from the newest checkpoint in the run's folder.

    `remixer_tf import_weights` writes a checkpoint of step 0 with weights to start
    from. Training writes to the folder: checkpoints/<step>, tensorboard/train,
    metrics.jsonl, eval, best.json, and train_summary.json at the end.

    Args:
        run: a `Run`. Its model, precision, seed and engine count.
        launch: a `Launch`, the folder and how the program was started.
        dataset: a factory. `dataset(seed=, steps_per_call=, shard_info=)` returns an
            endless `tf.data.Dataset` of dictionaries of [steps_per_call, batch, ...].
            `batch` is this host's part of the global batch. The model and
            `targets_and_weights` read them.
        optimizer: a factory of a `keras.optimizers.Optimizer`.
        schedule: a `Schedule`.
        checkpointing: a `Checkpointing`; None for its defaults.
        objective: an `Objective`; None for its defaults.
        evaluations: list of `LossEvaluation`, `DecodedEvaluation`, `ImageEvaluation`
            and `Pictures`.

    Returns:
        dictionary, the contents of train_summary.json; None if no steps are left.

    Raises:
        ValueError: an argument does not fit, the checkpoint was written by another
            model, or the model lacks a token id or class of the data.
        FloatingPointError: more losses or gradients than allowed are not finite.
        OSError: a checkpoint could not be written or read, or another run lives in the
            folder.
        SystemExit: SIGTERM or SIGHUP came. Everything is saved. The exit code is
            `stop_signal.PREEMPTED`.
        KeyboardInterrupt: SIGINT (Ctrl-C) came. Everything is saved.
    """
    start_time = time.perf_counter()
    checkpointing = checkpointing or Checkpointing()
    objective = objective or Objective()
    check_factories(model=run.model, optimizer=optimizer, dataset=dataset)
    schedule.check_evaluations(evaluations, checkpointing.best)
    schedule.check_profile(launch.profile)
    with _opened(run, launch) as (engine, signal, lock), ExitStack() as reads:
        import_rest(metrics=bool(evaluations))
        keras.utils.set_random_seed(run.seed)
        data = dataset(
            seed=run.seed,
            steps_per_call=schedule.steps_per_call,
            shard_info=engine.host.shard_info,
        )
        batches = reads.enter_context(TimedBatches(data, engine, signal))
        engine.build(run.make_model, optimizer, run.dtype_policy, objective)
        kept = checkpointing.keep, checkpointing.keep_period
        checkpoints = Checkpoints(launch.model_dir, engine, batches.iterator, *kept)
        session = Session(launch, schedule, engine, batches, checkpoints, signal)
        session.restore(checkpointing)
        evaluating = Evaluating(session, evaluations, checkpointing.best)
        if session.nothing_to_do(evaluating):
            return None
        superbatch = batches.like_first()  # Data are read while this checks and traces.
        session.check_layers(evaluating, superbatch)
        cost = engine.cost(superbatch)
        batches.read_first()
        session.describe(cost, run.dtype_policy)
        if launch.dry_run:
            return None
        text, hyperparameters = session.write_configuration()
        checkpoints.save_start()
        most = objective.max_skipped_steps
        skipped = SkippedSteps(launch.model_dir, most, text, engine.host)
        totals = Totals(session, skipped, start_time)
        logging = Logging(session, totals, skipped)
        logging.start(text, hyperparameters)
        sending = Sending(session, evaluating, hyperparameters)
        return _take_steps(session, evaluating, skipped, totals, logging, sending, lock)


def _take_steps(session, evaluating, skipped, totals, logging, sending, lock):
    """Takes the remaining steps, and returns the summary."""
    engine, schedule, step = session.engine, session.schedule, session.step
    session.speed = Speed()
    saving = Saving(session, evaluating, totals, skipped)
    profiling = Profiling(session)
    stopping = Stopping(session, skipped, saving)
    session.batches.leave = lambda: stopping.leave(step, hangs=True)
    session.checkpoints.ends = session.signal.came_alone
    hooks = [
        skipped,
        totals,
        profiling,
        session.progress,
        OwnFolder(session, lock),
        logging,
        stopping,
        saving,
        evaluating,
        sending,
    ]
    with (
        session.progress,
        sending,
        profiling,
        logging,
        session.checkpoints,
        session.signal.held(),
    ):
        while step < schedule.train_steps and not evaluating.stops_early:
            batch = next(session.batches)
            step += schedule.steps_per_call
            with engine.mark_step(step):
                metrics = engine.step(batch, stop=session.signal.received is not None)
            for hook in hooks:
                hook.after_call(step, batch, metrics)
    session.checkpoints.wait()
    engine.host.barrier()
    lock.check()
    summary = totals.summary(step)
    session.finish(step, summary, evaluating.stops_early)
    return summary


@contextmanager
def _opened(run, launch):
    """Yields a run's engine, signal and lock."""
    writes, model_dir = not launch.dry_run, launch.model_dir
    if writes:
        remove_abandoned(os.path.dirname(os.path.abspath(model_dir)))
    with (
        folder_of_run(model_dir) if writes else nullcontext(),
        nullcontext(run.engine()) as engine,  # First: several hosts connect here.
        StopSignal(alone=engine.host.count == 1) as signal,
        RunLock(model_dir, writes and engine.host.index == 0) as lock,
    ):
        yield engine, signal, lock
