"""Which format published weights have."""

import os
import re

from remixer_tf.errors import MissingFileError, UserError, shorten
from remixer_tf.weights import adapters
from remixer_tf.weights.hugging_face import read_hugging_face
from remixer_tf.weights.mesh_tensorflow import read_mesh_tensorflow
from remixer_tf.weights.model_folder import is_model_folder, read_model_folder
from remixer_tf.weights.published_folder import PublishedFolder
from remixer_tf.weights.t5x import read_t5x
from remixer_tf.weights.timm import read_timm


def read_source(path):
    """Finds the format of published weights, and reads all but the arrays: a `Source`.

    `path` is a str, a folder, or one of its files:

    - Hugging Face, timm: config.json and safetensors;
    - Mesh TensorFlow: `model.ckpt-<step>.index`, the highest step counts;
    - T5X: `checkpoint`, a msgpack file;
    - `remixer_tf export --format=safetensors`.

    Raises a FileNotFoundError if the folder or a file is missing, and a ValueError if
    the format or the model is unknown.
    """
    path = os.path.expanduser(path)
    if "://" in path:
        raise UserError(
            f"{path} is not on this machine. Copy it here first, with all files next "
            "to it."
        )
    if os.path.isdir(path):
        return _read_folder(path)
    if prefix := re.fullmatch(r"(.+)\.(index|meta|data-\d+-of-\d+)", path):
        path = prefix[1]
    if os.path.exists(f"{path}.index"):
        return read_mesh_tensorflow(path)
    if not os.path.exists(path):
        raise MissingFileError(f"There is no {path}.")
    folder = os.path.dirname(path) or "."
    if os.path.exists(os.path.join(folder, "config.json")):
        return _read_folder(folder)
    return read_t5x(path)


def mesh_tensorflow_prefix(folder):
    """The path of Mesh TensorFlow's newest checkpoint in a folder, without `.index`.

    None if there is none. The folder also has an operative_config.gin, as a run's.
    """
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    found = filter(None, (re.fullmatch(r"(.*-(\d+))\.index", name) for name in names))
    newest = max(found, key=lambda match: int(match[2]), default=None)
    return newest and os.path.join(folder, newest[1])


def _read_folder(folder):
    if is_model_folder(folder):
        return read_model_folder(folder)
    names = os.listdir(folder)
    if adapters.FILE in names:
        raise UserError(
            f"{folder} has adapters alone. Load the run that they were trained on: "
            f"remixer_tf.load(RUN, adapters={folder!r})."
        )
    if {"config.json", "adapter_config.json"} & {*names}:
        published = PublishedFolder(folder)
        of_timm = "architecture" in published.json("config.json")
        source = (read_timm if of_timm else read_hugging_face)(published)
        return source._replace(unread=published.unread())
    if prefix := mesh_tensorflow_prefix(folder):
        return read_mesh_tensorflow(prefix)
    if "checkpoint" in names:
        return read_t5x(os.path.join(folder, "checkpoint"))
    raise MissingFileError(
        f"{folder} has no weights of a known format. Expected: config.json (Hugging "
        "Face, timm), model.ckpt-<step>.index (Mesh TensorFlow) or checkpoint (T5X). "
        f"The folder has: {shorten(sorted(names)) or 'nothing'}. The folder of a run "
        "has operative_config.gin, and remixer_tf.load reads it."
    )
