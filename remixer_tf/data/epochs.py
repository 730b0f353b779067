"""The examples and steps of an epoch."""

import math

import seqio

from remixer_tf.arguments import (
    NonNegativeFloat,
    PositiveInt,
    Text,
    TheRun,
    checked,
)
from remixer_tf.data.lengths import has_split, needs_lengths
from remixer_tf.data.pipeline import check_split, get_task
from remixer_tf.errors import UserError


@checked
def examples_per_epoch(task=None, split: Text = "train", *, run: TheRun | None = None):
    """Returns the number of examples in the source of a task or mixture, or a run's.

    Raises a ValueError if it lacks the split, a source does not know its number, or a
    task joins or cuts its source's examples, as span corruption does.
    """
    task = run.get_task(True) if task is None and run else get_task(task)
    total = 0
    check_split(task, split)
    for subtask in seqio.get_subtasks(task):
        if not has_split(subtask, split):
            continue
        if needs_lengths(subtask):
            raise UserError(
                f"{subtask.name} joins or cuts what its source has to the lengths of a "
                "run: its examples in an epoch are not known. Set TRAIN_STEPS to a "
                "number of steps, and leave Schedule.examples_per_epoch None."
            )
        count = subtask.source.num_input_examples(split)
        if count is None:
            raise UserError(
                f"The source of {subtask.name} does not tell how many examples "
                f"{split!r} has. Give it num_input_examples, or set the number where "
                "it is asked for."
            )
        total += count
    return total


@checked
def steps_in_epochs(
    epochs: NonNegativeFloat,
    task=None,
    *,
    batch_size: PositiveInt,
    split="train",
    steps_per_call: PositiveInt = 1,
    run: TheRun | None = None,
):
    """Returns the steps that see every example `epochs` times, for gin's TRAIN_STEPS.

    Rounded up to whole calls; filtering, packing and mixing are ignored. For errors see
    `examples_per_epoch`.
    """
    examples = epochs * examples_per_epoch(task, split, run=run)
    return math.ceil(examples / (batch_size * steps_per_call)) * steps_per_call
