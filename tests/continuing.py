"""Whether a run that stopped at a checkpoint ends as one that went through."""

import shutil

import numpy as np
import tensorflow as tf

from remixer_tf.checkpoints.reading import available_steps, checkpoint_path


def read_weights(model_dir, step):
    """The model's variables in a checkpoint, {name: array}."""
    folder = checkpoint_path(f"{model_dir}/checkpoints", step)
    reader = tf.train.load_checkpoint(f"{folder}/state")
    names = [n for n in reader.get_variable_to_shape_map() if n.startswith("model/")]
    return {name: reader.get_tensor(name) for name in names}


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
