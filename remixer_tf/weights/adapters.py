"""Adapters alone: saved as a file, and loaded onto the model they were trained on.

`adapters.safetensors` has what `adapt` left to train, by its path without the model's
name. Its metadata has each adapter's alpha and dropout, and a checksum of the frozen
weights.
"""

import hashlib
import json
import os

import numpy as np

from remixer_tf.checkpoints.versions import check_version
from remixer_tf.checkpoints.whole_folder import check_absent, whole_folder
from remixer_tf.errors import MissingFileError, UserError, check_numbers
from remixer_tf.layers.base import Dense
from remixer_tf.models.adapters import (
    adapted_layers,
    has_lora,
    of_adapter,
    own_path,
    train_only,
)
from remixer_tf.weights.safetensors_files import read_file, write_safetensors
from remixer_tf.weights.source import model_variables, to_float32

FILE = "adapters.safetensors"
_KIND = "remixer_tf adapters"


def save_adapters(model, folder):
    """Writes the adapters of a model, and other variables that train with them.

    `folder` must not be there, and appears whole or not at all. Raises a ValueError if
    the model has no adapters.
    """
    if not has_lora(model):
        raise UserError(
            f"{model.name} has no adapters to save. Train them: Run.adapters = @Lora() "
            "in gin, enable_lora() in Python."
        )
    check_absent(folder)
    variables = model_variables(model)
    arrays = {
        path: np.ascontiguousarray(variable.numpy())
        for path, variable in variables.items()
        if variable.trainable
    }
    layers = {
        own_path(layer): (layer.lora_alpha, layer.lora_dropout.rate)
        for layer in adapted_layers(model)
    }
    metadata = {
        "kind": _KIND,
        "layers": json.dumps(layers),
        "base": _checksum(variables, arrays),
    }
    with whole_folder(folder) as place:
        write_safetensors(os.path.join(place, FILE), arrays, metadata)


def load_adapters(model, folder):
    """Gives a model the adapters of `save_adapters`, and freezes what was frozen.

    The built model has the weights that the adapters were trained on; else it is a
    ValueError, as is a damaged file.
    """
    path = os.path.join(folder, FILE)
    if os.path.isfile(folder):
        raise UserError(f"Expected: a folder with {FILE}. Received: the file {folder}.")
    if not os.path.exists(path):
        raise MissingFileError(
            f"There is no {path}. `remixer_tf export --format=adapters` writes it."
        )
    arrays, metadata = read_file(path)
    if metadata.get("kind") != _KIND:
        raise UserError(f"{path} does not hold adapters of remixer_tf.")
    check_version(metadata.get("remixer_tf"), folder)
    if has_lora(model):
        raise UserError(
            f"{model.name} has LoRA adapters already, so it takes none of {folder}. "
            "Load the weights that these started from: of a run that trained adapters "
            "step 0, with Run.adapters = None."
        )
    before = model_variables(model)
    others = {x for x in arrays if not of_adapter(x)}
    if lost := sorted(others - before.keys()):
        raise UserError(f"{path} has {lost[0]}, which the model lacks.")
    if _checksum(before, arrays) != metadata.get("base"):
        raise UserError(
            f"The adapters in {folder} were trained on other weights than those of "
            f"{model.name}. Load the run that they started from."
        )
    layers = model._flatten_layers()
    by_path = {own_path(x): x for x in layers if isinstance(x, Dense)}
    try:
        adapters = [
            (by_path[name], arrays[f"{name}/lora_kernel_a"].shape[1], alpha, rate)
            for name, (alpha, rate) in json.loads(metadata["layers"]).items()
        ]
        for _, _, alpha, rate in adapters:
            check_numbers(alpha=alpha, dropout_rate=rate)
    except (KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise UserError(
            f"{path} is damaged: its list of adapters does not fit ({error!r:.100})."
        ) from None
    train_only(model, [before[name] for name in others], adapters)
    for name, variable in model_variables(model).items():
        if name not in arrays:
            continue
        if arrays[name].shape != tuple(variable.shape):
            raise UserError(
                f"{path} is damaged: it has {name} {arrays[name].shape}. Expected: "
                f"{tuple(variable.shape)}."
            )
        variable.assign(to_float32(name, arrays[name]))


def _checksum(variables, arrays):
    """The SHA-256 of the variables that are not among the arrays, in hexadecimal."""
    digest = hashlib.sha256()
    for path in sorted(variables.keys() - arrays.keys()):
        value = np.ascontiguousarray(variables[path].numpy())
        digest.update(f"{path} {value.shape} ".encode())
        digest.update(value)
    return digest.hexdigest()
