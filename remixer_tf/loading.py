"""Models by name, and runs from folders: what `remixer_tf.create` and `load` are."""

import ast
import operator
import os
import tempfile
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from remixer_tf.arguments import as_python
from remixer_tf.checkpoints.export_folder import is_export
from remixer_tf.configuration import RUN_FILE, macros, read
from remixer_tf.errors import (
    MissingFileError,
    UserError,
    check_flags,
    check_integers,
    check_paths,
    nearest,
)
from remixer_tf.loaded.export import LoadedExport
from remixer_tf.loaded.inputs import check_listed
from remixer_tf.loaded.run import LoadedRun
from remixer_tf.models.build import check_memory, machine_memory
from remixer_tf.named_models import find_presets, preset_names
from remixer_tf.run import Run
from remixer_tf.weights import model_folder


def create(preset: str, **sizes: Any) -> keras.Model:
    """Makes a model with new weights.

    Args:
        preset: str, a name of `remixer_tf.presets()`.
        **sizes: values of the preset's macros, in small letters: `max_length=1024` sets
            MAX_LENGTH, `vocab_size=259` VOCAB_SIZE.

    Returns:
        a built `keras.Model`: `EncoderDecoder`, `DecoderOnly`, `EncoderOnly` or
        `ImageClassifier`. Its precision is Keras' (`keras.config.set_dtype_policy`).

    Raises:
        ValueError: there is no such preset or size, or a value does not fit.

    Examples:
        >>> import remixer_tf as rt
        >>> model = rt.create("remixer_tiny", vocab_size=64, max_length=128)
        >>> model.count_params()
        1066752
    """
    find_presets(preset, operator.eq)
    file = f"models/{preset}.gin"
    known = macros([file])
    for name in sizes:
        if name.upper() not in known or not name.islower():
            known = [macro.lower() for macro in known]
            raise UserError(
                f"{preset} has no size {name!r}.{nearest(name, known)} It has: "
                f"{', '.join(sorted(known))}."
            )
    bindings = [f"{name.upper()} = {_literal(name, x)}" for name, x in sizes.items()]
    factory = read([file], bindings, complete=False).value(Run, "model")

    def make():
        model = factory()
        model.build()
        return model

    try:
        check_memory(make, machine_memory())
        return make()
    except UserError as error:
        given = [f"{name}={value!r:.200}" for name, value in sizes.items()]
        given = f" with {', '.join(given)}" if given else ""
        raise UserError(f"{preset}{given}: {error}") from None


def _literal(name, value):
    """Returns a size as gin reads it."""
    if isinstance(value, np.generic):
        value = value.item()
    try:
        ast.literal_eval(repr(value))
    except (SyntaxError, ValueError):
        raise UserError(
            f"{name} must be a number, a str, or a list of these. Received: "
            f"{name}={value!r:.200}"
        ) from None
    return repr(value)


def load(
    path: str | os.PathLike,
    step: int | str | None = None,
    *,
    adapters: str | os.PathLike | None = None,
    bindings: Sequence[str] = (),
    modules: Sequence[str] = (),
    trust: bool = False,
) -> LoadedRun:
    """Loads a run, or published weights, to ask it or to train it on.

    Args:
        path: str, the folder of a run, or of weights that Hugging Face, T5X, Mesh
            TensorFlow or timm published. `remixer_tf import_weights` lists the formats;
            here they are read into memory. Or the folder of an export of LiteRT or
            ONNX, which answers by `generate`.
        step: int, the step of a run's checkpoint; None for the newest, "best" for the
            one that training found best.
        adapters: str, a folder of adapters that were trained on these weights, of
            `export --format=adapters`; None for none.
        bindings: list of str, gin bindings that prevail over the run's own, such as
            ["text_to_text.decode_fn = @beam_search", "beam_search.rules = @T5Rules()"].
        modules: names of modules of yours to import first, which register tasks or
            layers.
        trust: bool, whether the run's own configuration may import any module, which
            runs code of whoever made it.

    Returns:
        a `LoadedRun`.

    Raises:
        FileNotFoundError: there is no such folder, or nothing that can be loaded.
        ValueError: the weights or adapters do not fit, or a binding is wrong.

    Examples:
        >>> import remixer_tf as rt
        >>> run = rt.load("RUN")
        >>> answer = run.generate("the cat slept")
    """
    from remixer_tf.weights.formats import mesh_tensorflow_prefix  # late: start-up

    check_paths(path=path)
    if adapters is not None:
        check_paths(adapters=adapters)
    check_listed(bindings=bindings, modules=modules)
    check_flags(trust=trust)
    if not (step is None or isinstance(step, str) and step == "best"):
        check_integers(0, step=step)
    step = as_python(step)
    path = os.path.expanduser(os.fspath(path))
    prefix = f"{path}.index"  # Mesh TensorFlow's name of a checkpoint has no ending.
    if "://" not in path and not (os.path.exists(path) or os.path.exists(prefix)):
        hint = nearest(path, preset_names())
        if path in preset_names():
            hint = f" It is a preset: create({path!r}) makes a model with new weights."
        raise MissingFileError(
            f"there is no {path!r}, and nothing is downloaded. Expected: the folder of "
            f"a run (with {RUN_FILE}), or of published weights.{hint}"
        )
    if path.endswith(".keras"):
        raise UserError(
            f"{path} is a Keras model. Import remixer_tf.models and "
            f"remixer_tf.optimizers, and call keras.saving.load_model({path!r})."
        )
    if model_folder.is_model_folder(path):
        model_folder.check_manifest(path, weights=False)  # Reading checks the weights.
    if is_export(path):
        if step is not None or adapters is not None or bindings:
            raise UserError(
                f"{path} is an export of one step, as it is. Leave step, adapters and "
                "bindings out."
            )
        return LoadedExport.of_folder(path, modules=modules, trust=trust)
    is_run = os.path.exists(os.path.join(path, RUN_FILE))
    if is_run and not mesh_tensorflow_prefix(path):
        allowed = {"modules": modules, "trust": trust, "adapters": adapters}
        return LoadedRun.of_folder(path, step, bindings, **allowed)
    run = os.path.abspath(path).rpartition(f"{os.sep}checkpoints")[0]
    if run and os.path.exists(os.path.join(run, RUN_FILE)):
        raise UserError(f"{path} is a part of a run. Call load({run!r}, step=STEP).")
    if step is not None:
        raise UserError(f"{path} has no run with steps. Leave step out.")
    return _imported(path, bindings, modules, adapters)


def _imported(path, bindings, modules, adapters):
    """A run of published weights, in memory."""
    from remixer_tf.weights import formats
    from remixer_tf.weights.run import check_vocabulary_named, run_gin

    source = formats.read_source(path)
    check_vocabulary_named(source, None, bindings)
    if remarks := source.remarks():
        warnings.warn("; ".join(map(str.strip, remarks)), stacklevel=3)

    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "imported.gin")
        with open(file, "w") as opened:
            opened.write(run_gin(source))
        configuration = read([file], bindings, modules=modules)
    return LoadedRun(configuration, source=source, adapters=adapters, modules=modules)
