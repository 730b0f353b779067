"""Gin bindings that train or evaluate a loaded run on a table."""

import ast
import contextlib
import os
import shutil

import seqio

from remixer_tf import configuration
from remixer_tf.checkpoints import reading
from remixer_tf.configuration.bindings import literal, read_bindings
from remixer_tf.decoding import check_writes
from remixer_tf.errors import UserError, check_integers, check_paths, check_range
from remixer_tf.models.adapters import has_lora


def check_trains(run):
    """Raises a ValueError unless `fit` can train a `LoadedRun`."""
    check_writes(run.model)
    if "inputs" not in run.run.feature_lengths:
        raise UserError(
            "fit() trains on inputs and targets, and this run reads targets alone. "
            "Load it with bindings=[\"FEATURE_LENGTHS = {'inputs': 64, 'targets': "
            '64}"].'
        )
    if has_lora(run.model) and run.run.adapters is None:
        raise UserError(
            "fit() trains a whole model, and this one has LoRA adapters. Train them "
            "with run.model.fit, or load the run anew and bind Run.adapters = @Lora()."
        )


@contextlib.contextmanager
def no_folder_if_refused(model_dir):
    """Removes a new run's folder if training refuses it before its first step."""
    new = not os.path.exists(model_dir)
    try:
        yield
    except (TypeError, ValueError):
        steps = reading.available_steps(reading.checkpoint_directory(model_dir))
        if new and not any(steps):
            shutil.rmtree(model_dir, ignore_errors=True)
        raise


def check_continues(model_dir, train):
    """Raises a UserError unless `fit` began the run in a folder, on the same table."""
    begun = read_bindings(os.path.join(model_dir, configuration.RUN_FILE))
    files = ast.literal_eval(begun.get("fit/table_task.files", "{}"))
    if files.get("train") != _absolute(train):
        raise UserError(
            f"{model_dir} has another run already, of "
            f"{files.get('train', 'a task of its own')}. Name a new folder."
        )


def table_bindings(run, files, table):
    """Returns bindings that make a table the task of a `LoadedRun`.

    `files` is a dictionary from a split to a path, `table` arguments of `table_task` or
    None. The vocabulary is the run's.
    """
    if run.task is None:
        raise UserError("The run is of images: a table holds texts.")
    if not hasattr(run.model, "decode_step"):
        raise UserError(
            f"A table holds texts to write, and {type(run.model).__name__} writes "
            "none. evaluate() without a table evaluates the run's own task."
        )
    for file in files.values():
        check_paths(table=file)
    if isinstance(table, dict) and (own := {"files", "rows"} & table.keys()):
        raise UserError(
            f"table has {min(own)!r}, which fit() and evaluate() set. Name the files "
            "as their arguments."
        )
    if not isinstance(table, (dict, type(None))):
        raise TypeError(
            "table must be a dictionary of arguments of table_task, such as "
            f"{{'inputs': '{{question}}'}}. Received: table={table!r:.200}"
        )
    table = {"inputs": "{inputs}", "targets": "{targets}"} | (table or {})
    table["files"] = {split: _absolute(file) for split, file in files.items()}
    vocabulary = run.task.output_features["targets"].vocabulary
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        name = "fit/sentencepiece_vocabulary"
        file = os.path.abspath(vocabulary.sentencepiece_model_file)
        of = [f"{name}.path = {file!r}"]
        if tokens := getattr(vocabulary, "added_tokens", ()):
            of.append(f"{name}.added_tokens = {[tuple(token) for token in tokens]!r}")
    else:
        name, of = "fit/byte_vocabulary", []
    return [
        *of,
        f"{name}.extra_ids = {vocabulary.extra_ids}",
        *(f"{owner}.vocabulary = @{name}()" for owner in ("Run", "get_task")),
        "Run.task = @fit/table_task()",
        "get_task.name = @fit/table_task()",
        "train_dataset.task = @get_task()",
        "fit/table_task.name = 'table'",
        "fit/TableRows.header = True",
        "fit/TableRows.columns = None",
        "fit/TableRows.fractions = None",
        "fit/table_task.rows = @fit/TableRows()",
        "fit/table_task.metrics = ['accuracy']",
        *(f"fit/table_task.{name} = {literal(value)}" for name, value in table.items()),
    ]


def training_bindings(steps, batch_size, learning_rate, validates):
    """Returns bindings of a fine-tuning by T5's recipe: Adafactor, a constant rate."""
    check_integers(steps=steps, batch_size=batch_size)
    check_range("learning_rate", learning_rate, "a number > 0", lambda x: x > 0)
    names = ("LossEvaluation", "DecodedEvaluation") if validates else ()
    evaluations = ", ".join(f"@{name}()" for name in names)
    return [
        f"Schedule.train_steps = {steps}",
        f"Schedule.steps_per_call = {1 if steps % 10 else 10}",
        f"train.evaluations = [{evaluations}]",
        *(f"{name}.period = {steps}" for name in names),
        *([] if validates else ["Checkpointing.best = None"]),
        f"Schedule.checkpoint_period = {steps}",
        f"Batching.batch_size = {batch_size}",
        "train.optimizer = @Adafactor",
        "Adafactor.learning_rate = @WarmupConstant()",
        f"WarmupConstant.learning_rate = {learning_rate}",
        f"WarmupConstant.warmup_steps = {min(100, steps // 10)}",
    ]


def _absolute(file):
    return os.path.abspath(os.path.expanduser(file))
