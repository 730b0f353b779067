"""Whether a run that stopped at a checkpoint ends as one that went through."""

import shutil

import numpy as np
import tensorflow as tf

from remixer_tf.checkpoints.reading import (
    assign,
    available_steps,
    checkpoint_path,
    saved_shapes,
)


class Read:
    """Takes what is read from a checkpoint, as a `keras.Variable` does."""

    value = None

    def assign(self, value):
        self.value = np.asarray(value)


def read_weights(model_dir, step, group="model"):
    """The variables of a group in a checkpoint of either format, {path: array}."""
    folder = checkpoint_path(f"{model_dir}/checkpoints", step)
    pairs = [(name, Read()) for name in saved_shapes(folder)[group]]
    assign(folder, group, pairs)
    return {name: read.value for name, read in pairs}


def read_losses(model_dir):
    """Returns {step: set of the losses that were written for it}, by all runs there."""
    losses = {}
    for path in (model_dir / "tensorboard" / "train").glob("*.tfevents.*"):
        try:
            for record in tf.data.TFRecordDataset(str(path)):
                event = tf.compat.v1.Event.FromString(record.numpy())
                for value in event.summary.value:
                    if value.tag == "loss":
                        loss = float(tf.make_ndarray(value.tensor))
                        losses.setdefault(event.step, set()).add(loss)
        except tf.errors.DataLossError:
            pass  # A kill cut the file's last record.
    return losses


def copy_until_first_checkpoint(whole, parts):
    """Copies a run of two checkpoints without the second, whose step it returns."""
    first, last = available_steps(whole / "checkpoints")
    shutil.copytree(whole, parts, dirs_exist_ok=True)
    shutil.rmtree(checkpoint_path(f"{parts}/checkpoints", last))
    (parts / "train_summary.json").unlink()
    assert available_steps(parts / "checkpoints") == [first]
    return last


def assert_continues_exactly(whole, parts, run):
    """Checks weights bitwise.

    Args:
        whole: path, the folder of a run with two checkpoints.
        parts: path, where to: it gets the run as it was at its first checkpoint.
        run: function of no arguments that continues the run in `parts` to the end.

    Returns:
        the names of the variables.
    """
    last = copy_until_first_checkpoint(whole, parts)
    run()
    expected, continued = (read_weights(folder, last) for folder in (whole, parts))
    assert continued.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(continued[name], value, err_msg=name)
    return list(expected)
