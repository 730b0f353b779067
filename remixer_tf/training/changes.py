"""The configurations of a run: that of now, earlier ones, and what has changed."""

import os
import re

import tensorflow as tf

_SHOWN = 10


def write_configuration(model_dir, text, step):
    """Writes operative_config.gin; one of other bindings stays next to it.

    Args:
        model_dir: folder of the run.
        text: str, gin as `gin.operative_config_str` writes it.
        step: int, the step that the run continues from. The configuration that led
            to it becomes operative_config_<step>.gin.

    Returns:
        str, the bindings that have changed; "" for none.
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
        if not tf.io.gfile.exists(kept):  # Else no step was saved in between.
            tf.io.gfile.rename(path, kept)
        if more := changes[_SHOWN:]:
            changes[_SHOWN:] = [f"  and {len(more)} more"]
        message = "\n".join([f"the configuration has changed since {kept}:", *changes])
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(text)
    return message


def _bindings(text):
    """Returns {name: value as text}, without what says where the program started."""
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
