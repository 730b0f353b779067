"""A loaded run is trained and evaluated, on tables too, by gin bindings of its own."""

import contextlib
import dataclasses
import inspect
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Self

import seqio

from remixer_tf.checkpoints import reading
from remixer_tf.configuration.bindings import RUN_FILE, literal
from remixer_tf.configuration.reading import read
from remixer_tf.configuration.trust import check_run_configuration
from remixer_tf.configured import train_run
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.vocabularies import describe_vocabularies
from remixer_tf.decoding import check_writes
from remixer_tf.errors import (
    UserError,
    check_evaluations,
    check_integers,
    check_paths,
    check_range,
)
from remixer_tf.evaluation.evaluate import evaluate
from remixer_tf.evaluation.results import metrics_by_name
from remixer_tf.loaded.inputs import check_listed
from remixer_tf.models.adapters import has_lora
from remixer_tf.models.build import build_model, check_memory, machine_memory
from remixer_tf.run import Run
from remixer_tf.tasks.folders import data_folders
from remixer_tf.tasks.tables import TableRows, table_task
from remixer_tf.weights.run import began_with, write_run

Path = str | os.PathLike


class TableMethods:
    """Methods of a `LoadedRun` that train or evaluate it."""

    def fit(
        self,
        train: Path,
        model_dir: Path,
        *,
        validation: Path | None = None,
        steps: int = 1000,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        table: dict | None = None,
        bindings: Sequence[str] = (),
    ) -> Self:
        """Fine-tunes the run on a table, and returns the new run.

        It is `remixer_tf train`, with its checkpoints, bar, logs and evaluations, by
        T5's recipe for fine-tuning: Adafactor with a constant rate after a warm-up.
        Called again with the same `model_dir` and table, it resumes from the last
        checkpoint. A folder that began with another run's weights is refused.

        Args:
            train, validation: paths of tables in TSV, CSV, JSON lines, Arrow or
                Parquet. Loss and metrics of `validation` are computed at the end; None
                for none.
            model_dir: folder of the new run. It begins with this run's weights.
            steps: int, the step at which training ends.
            batch_size: int.
            learning_rate: float.
            table: dictionary of arguments of `table_task`, such as {"inputs":
                "translate: {en}", "targets": "{de}", "metrics": ["bleu"]}; None for
                the columns `inputs` and `targets`.
            bindings: list of str, more gin bindings.

        Returns:
            the `LoadedRun` of `model_dir`.

        Raises:
            FileNotFoundError: there is no such table.
            TypeError, ValueError: a row is bad, an argument does not fit, or the folder
                has another run.

        Examples:
            >>> new = run.fit("train.tsv", "NEW", steps=2)
            >>> new.step
            2
        """
        check_trains(self)
        check_listed(bindings=bindings)
        check_paths(model_dir=model_dir)
        files = {"train": train} | ({"validation": validation} if validation else {})
        model_dir = os.path.expanduser(model_dir)
        recipe = steps, batch_size, learning_rate, validation is not None
        configuration = self.configuration.and_bindings(
            [
                *table_bindings(self, files, table),
                *training_bindings(*recipe),
                *bindings,
            ]
        )
        begun = os.path.exists(os.path.join(model_dir, RUN_FILE))
        if begun:
            check_continues(model_dir, configuration, self.modules, self.trust)
        engine, _ = self.run.without_adapters().restore()
        own = os.path.realpath(self.model_dir or "") == os.path.realpath(model_dir)
        if begun and not own and began_with(model_dir, engine.model) is False:
            raise UserError(
                f"{model_dir} has another run already, which began with other weights "
                f"than those of {self._origin}. Name a new folder. To resume, call "
                "fit() of the run that it began with, or of itself."
            )
        with no_folder_if_refused(model_dir):
            run = configuration.call(Run)
            parts = run.model, run.dtype_policy
            check_memory(lambda: build_model(*parts), machine_memory())
            if not begun:
                task = run.get_task()
                for split in files:  # A bad table leaves no folder behind.
                    read_examples(task, split, run.feature_lengths, 1)
                vocabularies = describe_vocabularies(task)
                seen = configuration.seen_from(model_dir)
                write_run(model_dir, engine.model, seen, vocabularies, fits=True)
            train_run(configuration, model_dir)
        return self.of_folder(model_dir, modules=self.modules, trust=self.trust)

    def evaluate(
        self, data: Path | None = None, *, table: dict | None = None
    ) -> dict[str, float]:
        """Evaluates, as `remixer_tf eval` does.

        Args:
            data: path of a table, see `fit`; None for the run's own task.
            table: see `fit`.

        Returns:
            dictionary {"TASK/SPLIT/METRIC": value}.

        Raises:
            FileNotFoundError: there is no such table, or the task's files are missing.
            TypeError, ValueError: a row is bad, or the run has no evaluations.

        Examples:
            >>> found = run.evaluate("dev.tsv")
            >>> sorted(found)
            ['table/validation/accuracy']
        """
        configuration = self.configuration.apart()
        if data is None and table is not None:
            raise UserError("table describes the table of data, which is missing.")
        if data is not None:
            bindings = table_bindings(self, {"validation": data}, table)
            configuration = configuration.and_bindings(bindings)
        engine, step = self._restored()
        found = {}
        with (
            tempfile.TemporaryDirectory() as folder,
            data_folders(configuration.data_folders()),
        ):
            evaluations = configuration.value(evaluate, "evaluations") or []
            check_evaluations(evaluations)
            for evaluation in evaluations:
                evaluation.check(folder, evaluations)
                for splits in (evaluation.run(folder, engine, step) or {}).values():
                    for result in splits.values():
                        found |= metrics_by_name(result)
        if not found:
            raise UserError("The run has nothing to evaluate (evaluate.evaluations).")
        return found


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


def check_continues(model_dir, configuration, modules=(), trust=False):
    """Raises a UserError unless `fit` began the run in a folder, on the same table.

    `configuration` is that of this call, see `table_bindings`; the folder's is read as
    `load` reads it, with these `modules` and `trust`. Metrics and the table of
    `validation` may differ.
    """
    file = os.path.join(model_dir, RUN_FILE)
    if not trust:
        check_run_configuration(file, modules)
    begun = _table(read([file], [], complete=False, modules=modules))
    for name, value in _table(configuration).items():
        if (earlier := begun[name]) == value:
            continue
        if name == "train":
            what = earlier or "a task of its own"
        else:
            what = (
                f"a table with {name}={earlier!r:.200}. Received: {name}={value!r:.200}"
            )
        raise UserError(
            f"{model_dir} has another run already, of {what}. Name a new folder."
        )


def _table(configuration):
    """Returns {name: value} of all that makes the examples of a table in training."""
    parameters = inspect.signature(table_task).parameters.values()
    found = {x.name: None if x.default is x.empty else x.default for x in parameters}
    found |= configuration.bound(table_task, "fit").arguments()
    files, rows = found.pop("files"), found.pop("rows") or TableRows()
    del found["metrics"]
    train = files.get("train") if isinstance(files, dict) else files
    return {"train": train, **found, **dataclasses.asdict(rows)}


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
    of.append(f"{name}.extra_ids = {vocabulary.extra_ids}")
    return [
        *of,
        "Run.task = @fit/table_task()",
        f"Run.vocabulary = @{name}()",
        "Run.cache_dir = None",
        "Run.without = []",
        "train_dataset.task = None",
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
