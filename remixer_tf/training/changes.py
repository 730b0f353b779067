"""The configurations of a run: that of now, earlier ones, and what has changed."""

import os
import re

import tensorflow as tf

_SHOWN = 10


def write_configuration(model_dir, text, step):
    """Writes operative_config.gin. One of other bindings stays beside it.

    That is operative_config_<step>.gin then: it led to this step.

    Args:
        model_dir: folder of the run.
        text: str, gin as `gin.operative_config_str` writes it.
        step: int, the step that the run goes on from.

    Returns:
        str, the bindings that have changed; "" for none.
    """
    path = os.path.join(model_dir, "operative_config.gin")
    earlier = _read(path) if tf.io.gfile.exists(path) else text
    changes = _changes(_bindings(earlier), _bindings(text))
    message = ""
    if changes:
        kept = os.path.join(model_dir, f"operative_config_{step}.gin")
        if not tf.io.gfile.exists(kept):  # Else no step was saved in between.
            tf.io.gfile.rename(path, kept)
        if more := changes[_SHOWN:]:
            changes[_SHOWN:] = [f"  and {len(more)} more"]
        message = "\n".join([f"the configuration has changed since {kept}:", *changes])
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(text)
    return message


def _read(path):
    with tf.io.gfile.GFile(path) as file:
        return file.read()


def _bindings(text):
    """Returns {name: value as text}, without what says where the program started."""
    pairs = re.findall(r"^(\S+) = (.*(?:\n[ \t]+.*)*)", text, re.MULTILINE)
    return {
        name: " ".join(value.lstrip("\\").split())
        for name, value in pairs
        if not name.endswith("relative_paths.folders")
    }


def _changes(old, new):
    """Returns the lines that tell two dictionaries apart."""
    return [
        f"  {name}: {_short(old.get(name))}, now {_short(new.get(name))}"
        for name in {**new, **old}
        if old.get(name) != new.get(name)
    ]


def _short(value):
    if value is None:
        return "not set"
    return value if len(value) <= 60 else f"{value[:57]}..."
