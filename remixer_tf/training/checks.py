"""What is checked before a run, or before a batch of new shapes."""

import contextlib
import os

import numpy as np
import tensorflow as tf

from remixer_tf.errors import StorageError, UserError


def check_evaluations(evaluations, schedule, best):
    """Raises ValueError unless it is a list of evaluations that fit a `Schedule`.

    They also have to give the metric of a `Best`, unless that is None.
    """
    if not isinstance(evaluations, (list, tuple)) or not all(
        hasattr(evaluation, "period") for evaluation in evaluations
    ):
        raise UserError(
            "evaluations must be a list (in gin: [@LossEvaluation(), ...], each with "
            f"its brackets). Received: evaluations={evaluations!r}"
        )
    if best is not None:
        best.check(evaluations)
    names = (f"period of evaluation {i}" for i in range(len(evaluations)))
    periods = (evaluation.period for evaluation in evaluations)
    schedule.check_periods(**dict(zip(names, periods, strict=True)))


def check_vocabulary_size(vocabularies, model):
    """Raises ValueError if the model lacks ids of a vocabulary.

    Args:
        vocabularies: what `describe_vocabularies` gives.
        model: a `keras.Model`; one without `vocab_size` has no ids to lack.
    """
    limit = getattr(model, "vocab_size", None)
    for feature, vocabulary in vocabularies.items():
        if limit is not None and vocabulary["size"] > limit:
            raise UserError(
                f"The vocabulary of {feature} has {vocabulary['size']} ids, and the "
                f"model's vocab_size is {limit}. Set VOCAB_SIZE to "
                f"{-(-vocabulary['size'] // 128) * 128}: all ids, rounded up to a "
                "multiple of 128."
            )


def check_ids(superbatch, model):
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
            raise UserError(
                f"The data holds the {what} {largest}, but the model's {size} is "
                f"{limit}. Set {size.upper()} to {largest + 1} at least."
            )


def check_writable(model_dir):
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
        raise StorageError(
            f"Nothing can be written to --model_dir {model_dir}: {reason}. Choose "
            "another folder, or make room."
        ) from None


@contextlib.contextmanager
def folder_of_run(model_dir):
    """Makes the folder of the run; an error leaves none that is new and empty.

    Raises:
        OSError: nothing can be written there.
    """
    new, folder = [], os.path.abspath(model_dir)
    while "://" not in model_dir and not os.path.exists(folder):
        new.append(folder)
        folder = os.path.dirname(folder)
    try:
        try:
            check_writable(model_dir)
        except OSError as error:
            # What a kill left half written may fill the disk. It is removed when the
            # run has its lock; if that makes no room, the next file says so.
            if "No space left" not in str(error):
                raise
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            for folder in new:
                os.rmdir(folder)  # Raises if something is there.
        raise


def check_no_results(model_dir):
    """Raises ValueError if there are results of a run that is not there.

    Predictions without a result do not count: a kill in the first evaluation leaves
    them before the first checkpoint is whole.
    """
    walk = tf.io.gfile.walk(os.path.join(model_dir, "eval"))
    if any(name.endswith(".json") for _, _, names in walk for name in names):
        raise UserError(
            f"{model_dir} holds evaluations of an earlier run, and no checkpoint to "
            "go on from: they would count as this run's. Move the folder away, or set "
            "another --model_dir."
        )
