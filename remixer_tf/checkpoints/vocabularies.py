"""The vocabularies of a run: written beside its checkpoints, and held to afterwards.

A model reads the ids of another vocabulary without complaint, and answers nonsense.
"""

import json
import os

import tensorflow as tf
from absl import logging

from remixer_tf.checkpoints.reading import available_steps, checkpoint_directory


def remember_vocabularies(model_dir, vocabularies, continues):
    """Writes the vocabularies of a run as it starts, <model_dir>/vocabularies.json.

    Args:
        model_dir: folder of the run.
        vocabularies: what `describe_vocabularies` gives.
        continues: bool, whether the run has weights already.

    Raises:
        ValueError: the run continues, and was trained with others.
    """
    if continues:
        check_vocabularies(model_dir, vocabularies)
    with tf.io.gfile.GFile(_path(model_dir), "w") as file:
        json.dump(vocabularies, file, indent=2)


def check_vocabularies(model_dir, vocabularies):
    """Checks that a run was trained with these vocabularies.

    Features that only one of the two has are not compared. A run made before
    vocabularies were written is accepted, with a warning.

    Args:
        model_dir: folder of the run.
        vocabularies: what `describe_vocabularies` gives.

    Raises:
        ValueError: it was trained with others.
    """
    if not tf.io.gfile.exists(_path(model_dir)):
        if available_steps(checkpoint_directory(model_dir)):
            logging.warning(
                "%s does not tell which vocabulary it was trained with: that it is "
                "this one cannot be checked.",
                model_dir,
            )
        return
    with tf.io.gfile.GFile(_path(model_dir)) as file:
        saved = json.load(file)
    for name, of_run, of_task in compare_vocabularies(saved, vocabularies):
        raise ValueError(
            f"The run {model_dir} was trained with another vocabulary of {name}.\n"
            f"  trained with: {of_run}\n"
            f"  given: {of_task}\n"
            "Give the run's vocabulary (VOCABULARY, VOCABULARY_FILE), or another "
            "--model_dir."
        )


def compare_vocabularies(saved, given):
    """Compares vocabularies by feature, leaving out features that only one has.

    Args:
        saved, given: what `describe_vocabularies` gives.

    Yields:
        (feature, text of the saved one, text of the given one) of those that differ. In
        what file they are does not matter.
    """

    def content(vocabulary):
        return {key: value for key, value in vocabulary.items() if key != "file"}

    def show(vocabulary):
        return ", ".join(f"{name} {value}" for name, value in vocabulary.items())

    for name in sorted(saved.keys() & given.keys()):
        if content(saved[name]) != content(given[name]):
            yield name, show(saved[name]), show(given[name])


def _path(model_dir):
    return os.path.join(model_dir, "vocabularies.json")
