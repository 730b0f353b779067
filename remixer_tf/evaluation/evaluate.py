"""Scores checkpoints of a run."""

import functools
import os
import time

import keras
import tensorflow as tf

from remixer_tf.checkpoints import reading
from remixer_tf.errors import UserError, check_evaluations
from remixer_tf.imports import import_rest
from remixer_tf.training.run_folder import check_writable

_POLL_SECONDS = 10


def evaluate(run, model_dir, evaluations, *, step=None, bindings=None, force=False):
    """Runs evaluations on checkpoints of a run, except those with a known result.

    Args:
        run: a `Run`. The replicas of its engine share each batch.
        model_dir: folder of the run.
        evaluations: list of `Evaluation`s.
        step: int, the step of the checkpoint. None means the newest, "best" the one
            that training found best, and "each" all of them, as they appear, until
            training has ended. Several hosts need an int.
        bindings, force: see `Evaluation.run`.

    Returns:
        list of what each evaluation's `run` returned for the last step.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        OSError: results cannot be written.
        ValueError: the checkpoint fits another model or vocabulary, several hosts
            would each choose a step, or what the evaluations raise.
    """
    check_evaluations(evaluations)
    import_rest()
    for evaluation in evaluations:
        evaluation.check(model_dir, evaluations)
    engine = run.engine()
    if engine.host.count > 1 and not isinstance(step, int):
        raise UserError(
            f"step={step!r} lets each of the {engine.host.count} processes choose, and "
            "they may see different checkpoints. Name one, as --step=1000."
        )
    if engine.host.index == 0 and tf.io.gfile.isdir(model_dir):
        check_writable(model_dir)
    # Processes share their weights, so they begin with the same ones.
    keras.utils.set_random_seed(0)
    engine.build_model(run.make_model, run.dtype_policy)
    results, directory = None, reading.checkpoint_directory(model_dir)
    for wanted in wait_for_each(model_dir) if step == "each" else [step]:
        restored = reading.restore_model(model_dir, engine.model, wanted)
        folder = reading.checkpoint_path(directory, restored)
        results = [
            evaluation.run(
                model_dir,
                engine,
                restored,
                checkpoint=functools.partial(reading.hash_checkpoint, folder),
                bindings=bindings,
                force=force,
            )
            for evaluation in evaluations
        ]
    engine.host.barrier()
    if results is None:  # There was no checkpoint: restoring one says so.
        reading.restore_model(model_dir, engine.model)
    return results


def wait_for_each(model_dir):
    """Yields the steps of checkpoints as they appear, until the run has ended."""
    directory = reading.checkpoint_directory(model_dir)
    seen = set()
    while True:
        # Read in this order: a checkpoint is saved before the summary.
        ended = tf.io.gfile.exists(os.path.join(model_dir, "train_summary.json"))
        steps = [s for s in reading.available_steps(directory) if s not in seen]
        for step in steps:
            seen.add(step)
            if step in reading.available_steps(directory):  # Not yet removed.
                yield step
        if ended and not steps:
            return
        if not steps:
            time.sleep(_POLL_SECONDS)
