"""A run's vocabularies: kept in its folder, and compared whenever it is used.

With another vocabulary's ids a model would answer nonsense without an error.
"""

import filecmp
import functools
import os
import re

import tensorflow as tf
from absl import logging

from remixer_tf.checkpoints.paths import locate
from remixer_tf.checkpoints.reading import available_steps, checkpoint_directory
from remixer_tf.checkpoints.whole_folder import (
    copy_file,
    read_json,
    whole_file,
    write_json,
)
from remixer_tf.errors import UserError

FOLDER = "vocabularies"


def remember_vocabularies(model_dir, vocabularies):
    """Writes vocabularies.json of a run that starts, and copies of the files.

    `vocabularies` is a dictionary from `describe_vocabularies`. Returns it with the
    copies as files.
    """
    written = {
        name: vocabulary | _copy_file(model_dir, vocabulary)
        for name, vocabulary in vocabularies.items()
    }
    write_json(_path(model_dir), written)
    return written


def forget_vocabularies(model_dir):
    """Removes vocabularies.json, if it is there."""
    if tf.io.gfile.exists(_path(model_dir)):
        tf.io.gfile.remove(_path(model_dir))


def _copy_file(model_dir, vocabulary):
    """Copies a vocabulary's file. Returns {"file": path of the copy in model_dir}."""
    if "file" not in vocabulary:
        return {}
    # Inputs and targets may have files with one name in different folders.
    mark = f"{vocabulary['sha256'][:8]}-"
    name = os.path.basename(vocabulary["file"]).removeprefix(mark)
    place = os.path.join(FOLDER, mark + name)
    copy = os.path.join(model_dir, place)
    if not tf.io.gfile.exists(copy):
        tf.io.gfile.makedirs(os.path.dirname(copy))
        with whole_file(copy) as file:
            copy_file(vocabulary["file"], file)
    return {"file": place}


def name_copies(configuration, model_dir):
    """Returns a `Configuration` as gin text, which names a run's own vocabularies.

    Paths of the copies, in place of those of the files, are relative to `model_dir`.
    """
    folder = os.path.join(model_dir, FOLDER)
    copies = os.listdir(folder) if os.path.isdir(folder) else []

    located = functools.partial(locate, starts=configuration.starts)

    def name_copy(literal):
        name = os.path.basename(literal[2])
        for copy in copies:
            if name and copy.endswith(name) and os.path.isfile(located(literal[2])):
                place = os.path.join(folder, copy)
                if filecmp.cmp(located(literal[2]), place, shallow=False):
                    return repr(os.path.join(FOLDER, copy))
        return literal[0]

    return re.sub(r"(['\"])([^'\"\n]+)\1", name_copy, configuration.text())


def check_vocabularies(model_dir, vocabularies):
    """Raises ValueError if a run was trained with other vocabularies.

    Only common features are compared. A run without vocabularies.json is accepted with
    a warning.
    """
    if not tf.io.gfile.exists(_path(model_dir)):
        if available_steps(checkpoint_directory(model_dir)):
            logging.warning(
                "%s does not name the vocabulary that it was trained with. Whether it "
                "is this one cannot be checked.",
                model_dir,
            )
        return
    saved = _read(_path(model_dir))
    for name, of_run, of_task in compare_vocabularies(saved, vocabularies):
        raise UserError(
            f"The run {model_dir} was trained with another vocabulary of {name}: "
            f"{of_run}. Received: {of_task}. Give the run's "
            "vocabulary (VOCABULARY, VOCABULARY_FILE), or another --model_dir."
        )


def compare_vocabularies(saved, given):
    """Yields (feature, saved, given) as text, for common features that differ.

    File names may differ.
    """

    def show(vocabulary):
        return ", ".join(f"{name} {value}" for name, value in vocabulary.items())

    for name in sorted(saved.keys() & given.keys()):
        if {**saved[name], "file": ""} != {**given[name], "file": ""}:
            yield name, show(saved[name]), show(given[name])


def _read(path):
    saved = read_json(path)
    if not isinstance(saved, dict) or any(type(x) is not dict for x in saved.values()):
        raise UserError(
            f"{path} is damaged: it does not name the run's vocabularies. Remove it "
            "if you know that the given ones are right."
        )
    return saved


def _path(model_dir):
    return os.path.join(model_dir, "vocabularies.json")
