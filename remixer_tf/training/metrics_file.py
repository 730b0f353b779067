"""<model_dir>/metrics.jsonl: the numbers of a run as JSON lines, for programs.

A line is an object with `step` and numbers: one for each log line of training, with
TensorBoard's names such as `loss`, and one for each result of an evaluation, with names
such as `mini_cogs/dev/loss`. What is not finite is null. A run that resumes removes the
lines of later steps. If a step has several values of a name, the last one counts.
"""

import json
import math
import os

import numpy as np
import tensorflow as tf

from remixer_tf.checkpoints.whole_folder import write_whole


def append_metrics(model_dir, step, values):
    """Appends a line of a dictionary of numbers and arrays; text is left out."""
    numbers = {
        name: _finite(np.asarray(value).tolist())
        for name, value in values.items()
        if not isinstance(value, str)
    }
    with tf.io.gfile.GFile(_path(model_dir), "a") as file:
        file.write(json.dumps({"step": step, **numbers}) + "\n")


def remove_metrics_after(model_dir, step):
    """Removes lines of steps after `step`, and one that a kill left half written."""
    path = _path(model_dir)
    if not tf.io.gfile.exists(path):
        return
    with tf.io.gfile.GFile(path) as file:
        lines = list(file)
    kept = [line for line in lines if _step_of(line) <= step]
    if len(kept) < len(lines):
        write_whole(path, "".join(kept))


def _path(model_dir):
    return os.path.join(model_dir, "metrics.jsonl")


def _finite(value):
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value if math.isfinite(value) else None


def _step_of(line):
    """The step of a line; infinity for one that is not whole."""
    try:
        return int(json.loads(line)["step"]) if line.endswith("\n") else math.inf
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf
