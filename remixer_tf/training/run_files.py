"""The files that training writes to a run's folder, besides checkpoints.

`operative_config.gin` is the configuration, `train_summary.json` the summary of a run
that has ended, and `metrics.jsonl` its metrics as JSON lines. Each line is an object
with `step` and numbers, null for one that is not finite. A log line of training has
TensorBoard's names, such as `loss`; an evaluation's has names such as
`mini_cogs/dev/loss`. A run that resumes removes the lines of later steps. If a name has
several values at one step, the last one counts.
"""

import json
import math
import os
import re

import numpy as np
import tensorflow as tf

from remixer_tf.checkpoints.whole_folder import write_json, write_whole

_SHOWN = 10


def write_configuration(model_dir, text, step):
    """Writes operative_config.gin, and keeps an earlier one with other bindings.

    It becomes operative_config_<step>.gin, of the step that the run continues from.
    Returns a str, the bindings that have changed; "" for none.
    """
    path = os.path.join(model_dir, "operative_config.gin")
    earlier, message = text, ""
    if tf.io.gfile.exists(path):
        with tf.io.gfile.GFile(path) as file:
            earlier = file.read()
    old, new = _bindings(earlier), _bindings(text)
    changes = [
        f"  {name}: {_short(old.get(name))}, now {_short(new.get(name))}"
        for name in {**new, **old}
        if old.get(name) != new.get(name)
    ]
    if changes:
        kept = os.path.join(model_dir, f"operative_config_{step}.gin")
        if not tf.io.gfile.exists(kept):  # Otherwise no step was saved in between.
            tf.io.gfile.rename(path, kept)
        if more := changes[_SHOWN:]:
            changes[_SHOWN:] = [f"  and {len(more)} more"]
        message = "\n".join([f"the configuration has changed since {kept}:", *changes])
    write_whole(path, text)
    return message


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
        name: _finite(np.asarray(value).tolist())
        for name, value in values.items()
        if not isinstance(value, str)
    }
    with tf.io.gfile.GFile(os.path.join(model_dir, "metrics.jsonl"), "a") as file:
        file.write(json.dumps({"step": step, **numbers}) + "\n")


def remove_metrics_after(model_dir, step):
    """Removes lines of later steps, and a line that a kill left half written."""
    path = os.path.join(model_dir, "metrics.jsonl")
    if not tf.io.gfile.exists(path):
        return
    with tf.io.gfile.GFile(path) as file:
        lines = list(file)
    kept = [line for line in lines if _step_of(line) <= step]
    if len(kept) < len(lines):
        write_whole(path, "".join(kept))


def _finite(value):
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value if math.isfinite(value) else None


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
