"""Makes a run of published weights."""

import hashlib
import os

import keras
import numpy as np

from remixer_tf.checkpoints.vocabularies import name_copies, remember_vocabularies
from remixer_tf.checkpoints.whole_folder import read_json, whole_folder, write_json
from remixer_tf.checkpoints.writing import write_weights
from remixer_tf.errors import ExistingFileError, UserError
from remixer_tf.weights.source import BYTES, ENCODER, SPANS, TEXT
from remixer_tf.weights.values import gin_text

_BASE = "base.json"  # the digest of the weights that a run began with


def run_gin(source, vocabulary=None):
    """Returns the gin text of a run that starts from a `Source`.

    `vocabulary` is the path of its vocabulary's file, None for the one next to the
    weights.
    """
    text = "".join(f"include {file!r}\n" for file in source.architecture)
    if source.run is None:
        return text
    text += f"{gin_text(source.bindings)}include {source.run!r}\n"
    if source.run in (TEXT, BYTES):
        text += gin_text({"EXTRA_IDS": source.extra_ids})
    if source.eos_after_trim:
        text += gin_text({"table_task.eos_after_trim": True})
    if path := vocabulary or source.vocabulary:
        file = os.path.abspath(os.path.expanduser(path))
        text += gin_text({"VOCABULARY_FILE": file})
    if source.max_length:
        second = "token_types" if source.run == ENCODER else "targets"
        lengths = {"inputs": source.max_length, second: source.max_length}
        text += f"FEATURE_LENGTHS = {lengths}\n"
    if source.added_tokens:
        tokens = source.added_tokens
        text += gin_text({"sentencepiece_vocabulary.added_tokens": tokens})
    if source.generation.file:
        text += f"include {source.generation.file!r}\n"
    return text + gin_text(source.generation.bindings)


def check_vocabulary_named(source, vocabulary, bindings):
    """Raises ValueError if weights need a vocabulary's file and have none.

    Models of bytes or images and exported runs need none, and take none. `vocabulary`
    is its path, or None; `bindings` is a list of str, of gin.
    """
    given = any(binding.startswith("VOCABULARY") for binding in bindings)
    if source.run not in (TEXT, ENCODER, SPANS):
        if vocabulary:
            raise UserError(
                f"a {source.format} needs no vocabulary's file. Leave --vocabulary out."
            )
    elif not (vocabulary or source.vocabulary or given):
        raise UserError(
            "no vocabulary came with these weights. Name their SentencePiece model "
            "(of T5's own: sentencepiece.model or spiece.model), of a BERT its "
            "vocab.txt, with --vocabulary=FILE; in Python with "
            "bindings=[\"VOCABULARY_FILE = 'FILE'\"]."
        )


def check_vocabulary_fits(vocabularies, vocab_size):
    """Raises ValueError if a vocabulary has ids that the model's embedding lacks.

    `vocabularies` is what `describe_vocabularies` returns.
    """
    for feature, vocabulary in vocabularies.items():
        if vocabulary["size"] > vocab_size:
            raise UserError(
                f"The vocabulary of {feature} has {vocabulary['size']} ids, "
                f"{vocabulary['extra_ids']} of them extra ids, and the weights have "
                f"{vocab_size}. Name the one of their training: "
                "--vocabulary=FILE, and --gin.EXTRA_IDS=N where it has not T5's 100."
            )


def check_new(model_dir):
    """Raises FileExistsError unless the folder is missing or empty."""
    if os.path.exists(model_dir) and (
        not os.path.isdir(model_dir) or os.listdir(model_dir)
    ):
        raise ExistingFileError(
            f"{model_dir} is not empty. Set --model_dir to a new folder."
        )


def write_run(model_dir, model, configuration, vocabularies, fits=False):
    """Writes a run that has taken no step. The folder appears whole, or not at all.

    `model_dir` is missing or empty, `configuration` a `Configuration`. The built model
    has the weights; if `fit` trains them, the folder keeps their digest, see
    `began_with`. For `vocabularies` see `write_model_folder`.
    """
    check_new(model_dir)
    with whole_folder(model_dir) as folder:
        write_weights(folder, model)
        if vocabularies:
            remember_vocabularies(folder, vocabularies)
        with open(os.path.join(folder, "operative_config.gin"), "w") as file:
            file.write(name_copies(configuration, folder))
        if fits:
            write_json(os.path.join(folder, _BASE), {"weights": _digest(model)})


def began_with(model_dir, model):
    """Whether `fit` began a run with a model's weights; None if nothing says."""
    base = read_json(os.path.join(model_dir, _BASE))
    return None if base is None else base.get("weights") == _digest(model)


def _digest(model):
    """The SHA-256 of a built model's weights and of their paths, a str."""
    digest = hashlib.sha256()
    for weight in sorted(model.weights, key=lambda weight: weight.path):
        value = np.ascontiguousarray(keras.ops.convert_to_numpy(weight))
        digest.update(f"{weight.path} {value.shape} ".encode())
        digest.update(value.view("uint8"))
    return digest.hexdigest()
