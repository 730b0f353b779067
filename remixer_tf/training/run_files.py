"""The files that training writes to a run's folder, besides checkpoints.

`operative_config.gin` is the configuration, `train_summary.json` the summary of a run
that has ended, and `metrics.jsonl` its metrics as JSON lines. Each line is an object
with `step` and numbers, null for one that is not finite. A log line of training has
TensorBoard's names, such as `loss`; an evaluation's has names such as
`mini_cogs/dev/loss`. A run that resumes removes the lines of later steps. If a name has
several values at one step, the last one counts. `tensorboard/train` has the same
numbers for TensorBoard, an evaluation's in a folder below.
"""

import json
import math
import os
import re
import time

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.summary_ops_v2 import import_event

from remixer_tf.checkpoints.whole_folder import (
    finite,
    write_json,
    write_whole,
)

_SHOWN = 10


def write_configuration(model_dir, text, step):
    """Writes operative_config.gin, and keeps an earlier one with other bindings.

    It becomes operative_config_<step>.gin, of the step that the run continues from.
    Returns a str, the bindings that have changed; "" for none. At step 0 new bindings
    are no change: a run of published weights has not called training's parts yet, and
    so lacks their defaults.
    """
    path = os.path.join(model_dir, "operative_config.gin")
    earlier, message = text, ""
    if tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path) as file:
            earlier = file.read()
    changes = [f"  {x}" for x in changed_bindings(earlier, text, added=step > 0)]
    if changes:
        kept = os.path.join(model_dir, f"operative_config_{step}.gin")
        if not tf.io.gfile.exists(kept):  # Otherwise no step was saved in between.
            tf.io.gfile.rename(path, kept)
        if more := changes[_SHOWN:]:
            changes[_SHOWN:] = [f"  and {len(more)} more"]
        message = "\n".join([f"the configuration has changed since {kept}:", *changes])
    write_whole(path, text)
    return message


def changed_bindings(old, new, added=True):
    """Returns a list of str, such as "A: 1, now 2", of what differs in two gin texts.

    `added` says whether names that the old text lacks count.
    """
    old, new = _bindings(old), _bindings(new)
    return [
        f"{name}: {_short(old.get(name))}, now {_short(new.get(name))}"
        for name in {**new, **old}
        if old.get(name) != new.get(name) and (added or name in old)
    ]


def _bindings(text):
    """Returns {name: value as text}, without the folder where the program started."""
    pairs = re.findall(r"^(\S+) = (.*(?:\n[ \t]+.*)*)", text, re.MULTILINE)
    return {
        name: " ".join(value.lstrip("\\").split())
        for name, value in pairs
        if not name.endswith("relative_paths.folders")
    }


def _short(value):
    if value is None:
        return "not set"
    return value if len(value) <= 60 else f"{value[:57]}..."


def append_metrics(model_dir, step, values):
    """Appends a dictionary of numbers and arrays to metrics.jsonl, without its text."""
    numbers = {
        name: finite(np.asarray(value).tolist())
        for name, value in values.items()
        if not isinstance(value, str)
    }
    with tf.io.gfile.GFile(os.path.join(model_dir, "metrics.jsonl"), "a") as file:
        file.write(json.dumps({"step": step, **numbers}) + "\n")


def remove_metrics_after(model_dir, step):
    """Removes later steps: the run resumes at this one.

    They leave metrics.jsonl, as does a line that a kill left half written, and
    TensorBoard's curves.
    """
    path = os.path.join(model_dir, "metrics.jsonl")
    if not tf.io.gfile.exists(path):
        return
    with tf.io.gfile.GFile(path) as file:
        lines = list(file)
    kept = [line for line in lines if _step_of(line) <= step]
    if len(kept) < len(lines):
        write_whole(path, "".join(kept))
        _remove_summaries_after(model_dir, step)


_WRITERS = {}  # of TensorBoard's files, open, by folder


def summary_writer(model_dir, name=""):
    """Returns the one writer of a process for a run's curves in TensorBoard.

    Args:
        model_dir: str, folder of the run.
        name: str, of an evaluation's curves; "" for training's.
    """
    # Below train, so that TensorBoard shows the run's hyperparameters next to it.
    folder = os.path.join(model_dir, "tensorboard", "train", name)
    if folder not in _WRITERS or not tf.io.gfile.isdir(folder):  # It was removed.
        _WRITERS[folder] = tf.summary.create_file_writer(folder)
    return _WRITERS[folder]


def close_summaries(model_dir):
    """Closes the writer of training's curves, if this process has one."""
    writer = _WRITERS.pop(os.path.join(model_dir, "tensorboard", "train", ""), None)
    if writer is not None:
        writer.close()


def _remove_summaries_after(model_dir, step):
    folder = os.path.join(model_dir, "tensorboard", "train")
    session = tf.compat.v1.SessionLog(status=tf.compat.v1.SessionLog.START)
    # TensorBoard drops values of this step and later ones that it has read before.
    event = tf.compat.v1.Event(
        wall_time=time.time(), step=step + 1, session_log=session
    ).SerializeToString()
    for found, _, files in tf.io.gfile.walk(folder):
        if any(".tfevents." in name for name in files):
            writer = summary_writer(model_dir, found[len(folder) :].strip("/"))
            with writer.as_default(step):
                for _ in range(2):  # A folder's first one only begins a session.
                    import_event(event)
            writer.flush()


def _step_of(line):
    """The step of a line; infinity for a damaged one."""
    try:
        return int(json.loads(line)["step"]) if line.endswith("\n") else math.inf
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf


def write_summary(model_dir, summary, replace=True):
    """Writes train_summary.json; unless `replace`, only if it is missing."""
    path = os.path.join(model_dir, "train_summary.json")
    if replace or not tf.io.gfile.exists(path):
        write_json(path, summary)


def remove_summary(model_dir):
    """Removes train_summary.json if there is one: the run continues."""
    path = os.path.join(model_dir, "train_summary.json")
    if tf.io.gfile.exists(path):
        tf.io.gfile.remove(path)
