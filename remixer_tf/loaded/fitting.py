"""Gin bindings that train or evaluate a loaded run on a table."""

import os

import seqio

from remixer_tf.errors import UserError


def table_bindings(run, files, table):
    """Returns bindings that make a table the run's task, with the run's vocabulary.

    Args:
        run: a `LoadedRun`.
        files: dictionary from a split to a path.
        table: arguments of `table_task`, or None.

    Raises:
        TypeError: a file is no path.
        ValueError: the run is of images.
    """
    if run.task is None:
        raise UserError("The run is of images: a table holds texts.")
    for file in files.values():
        if not isinstance(file, (str, os.PathLike)):
            raise TypeError(f"Expected: the path of a table. Received: {file!r:.200}")
    table = {"inputs": "{inputs}", "targets": "{targets}"} | (table or {})
    expanded = {k: os.path.expanduser(file) for k, file in files.items()}
    table["files"] = {k: os.path.abspath(file) for k, file in expanded.items()}
    vocabulary = run.task.output_features["targets"].vocabulary
    if isinstance(vocabulary, seqio.SentencePieceVocabulary):
        name = "fit/sentencepiece_vocabulary"
        file = os.path.abspath(vocabulary.sentencepiece_model_file)
        of = [f"{name}.path = {file!r}"]
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
        *(f"fit/table_task.{name} = {value!r}" for name, value in table.items()),
    ]


def training_bindings(steps, batch_size, learning_rate, validates):
    """Returns bindings of a fine-tuning by T5's recipe: Adafactor, a constant rate."""
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
