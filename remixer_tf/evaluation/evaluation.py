"""What to evaluate and how, for `remixer_tf eval` and while training alike.

Results are files in the folder of the run, and nothing else remembers them: a run that
was killed knows what it has evaluated, which step was best, and whether to stop.
"""

import functools
import hashlib
import json
import math
import time

import seqio
from absl import logging

from remixer_tf import console
from remixer_tf.checkpoints.vocabularies import check_vocabularies
from remixer_tf.data.lengths import check_feature_lengths, has_split
from remixer_tf.data.pipeline import check_split
from remixer_tf.data.vocabularies import describe_vocabularies
from remixer_tf.errors import UserError
from remixer_tf.evaluation.calls import call_on_examples, padded_lengths
from remixer_tf.evaluation.results import (
    metrics_by_name,
    print_table,
    read_result,
    read_results,
    result_names,
    write_examples,
    write_result,
)
from remixer_tf.evaluation.splits import TaskSplit, data_of, default_splits
from remixer_tf.evaluation.task_metrics import compute_metrics, metrics_of
from remixer_tf.layers.checks import check_integers


class Evaluation:
    """One result for each of its parts, pairs of a task's and a split's name.

    A result's key says what it was computed from: `checkpoint` and `examples`, hashes
    of all of them; `configuration`, a hash of the bindings that `run` was given; and
    the `settings` of the evaluation itself. A result with the same key is known, and is
    not computed again. The code is no part of it.

    A subclass has these methods:

    - `parts()`: the (task name, split) pairs of the results;
    - `settings()`: its arguments that can change a result, a dictionary for JSON, in
      which a function is known by its name;
    - `hash_examples(part)`: a hash of all examples of a part, a str;
    - `batch_function(model)`: the function of a batch that the engine compiles;
    - `predict(part, model, function)`: calls it on a part. Returns facts, what the
      result holds beside its metrics, a dictionary; and predictions;
    - `metrics(part, predictions)`: {name: number};
    - `metric_names(wanted)`: the names that metrics will have, before there is a
      result, a set of "name/task/split/metric". One that ends with "/" stands for all
      that begin so. `wanted` is a name that may be worth a closer look.

    Args:
        period: int, steps between evaluations; the last step is always evaluated.
        name: str, tells apart evaluations of the same splits: their results lie in
            eval/<name>, their curves are called so. None or "" for none. In gin,
            `@scope()` names an evaluation by the scope it is made in.
    """

    kind = None  # the name of the file of a result
    any_rows = False  # see `Engine.compile`
    examples_file = "predictions.jsonl"  # what it says of each example
    columns = ("input", "target", "prediction")  # of them, those that TensorBoard shows
    vocabularies = None  # what `describe_vocabularies` gives, of text

    def __init__(self, *, period=1000, name=None):
        self.period = period
        self.name = name or ""
        self._compiled = None, None

    def records(self, part, predictions):
        """Returns what is written of each example: dictionaries, None for nothing."""

    def check(self, model_dir, others=()):
        """Raises a ValueError, before a run starts, if it could not be evaluated.

        The run has another vocabulary, there is nothing to score, or one of the run's
        other evaluations would write the same files.
        """
        if self.vocabularies:
            check_vocabularies(model_dir, self.vocabularies)
        parts = set(self.parts())
        for other in others:
            if (
                other is not self
                and (other.kind, other.name) == (self.kind, self.name)
                and (shared := parts.intersection(other.parts()))
            ):
                raise UserError(
                    f"Two evaluations of {'/'.join(min(shared))} have the same name "
                    f"{self.name!r}: their results would overwrite each other. Give "
                    "each a name, or make them in gin scopes, as @a/LossEvaluation() "
                    "where LossEvaluation.name = @scope()."
                )

    def results(self, model_dir, model, bindings=None):
        """Returns the results of all steps that have the key of now, a list."""
        parts = self.parts()
        return [
            result
            for result in read_results(model_dir, self.kind)
            if result.get("evaluation") == self.name
            and (part := (result["task"], result["split"])) in parts
            and (key := result.get("key"))
            and key == self._key(part, model, key.get("checkpoint"), bindings)
        ]

    def run(
        self, model_dir, engine, step, *, checkpoint=None, bindings=None, force=False
    ):
        """Evaluates what has no result yet, writes it, and prints all.

        All hosts call it. The first of them writes and prints.

        Args:
            model_dir: folder of the run.
            engine: the `Engine` that has the model.
            step: int, that of the model's weights.
            checkpoint: a function that returns a hash of the checkpoint of these
                weights, see `reading.hash_checkpoint`; None if there is none. No
                result is known then.
            bindings: dictionary of str, what else can change a result: the bindings of
                gin; None for none.
            force: bool, whether to evaluate again what is known.

        Returns:
            dictionary task name -> split -> result.

        Raises:
            OSError: a result cannot be written.
        """
        known = {}
        if checkpoint and not force:
            known = self._known(engine, model_dir, step, checkpoint(), bindings)
        engine.host.barrier()  # All know the same, before the first writes more.
        writes = engine.host.index == 0
        results = {}
        for part in self.parts():
            result = known.get(part)
            if result is None:
                function = self._function(engine)
                facts, predictions = self.predict(part, engine.model, function)
                result = {**self._identity(part, step), **facts}
                examples = None
                # What was predicted is safe before metrics may fail.
                records = self.records(part, predictions) if writes else None
                if records is not None:
                    names = self.examples_file, self.columns
                    examples = write_examples(model_dir, result, records, *names)
                result["metrics"] = self.metrics(part, predictions)
                if writes:
                    hashed = checkpoint() if checkpoint else None
                    result["key"] = self._key(part, engine.model, hashed, bindings)
                    write_result(model_dir, self.kind, result, examples)
            results.setdefault(part[0], {})[part[1]] = result
        for task, splits in results.items() if writes else ():
            print_table("/".join(filter(None, (self.name, task))), step, splits)
        return results

    def _known(self, engine, model_dir, step, checkpoint, bindings):
        """{part: its result} of those with this key; says of each whether it counts."""
        known = {}
        for part in self.parts():
            result = read_result(model_dir, self.kind, self._identity(part, step))
            if result is None:
                continue
            old = result.get("key", {})
            key = self._key(part, engine.model, checkpoint, bindings)
            changed = [name for name, value in key.items() if old.get(name) != value]
            if not changed:
                known[part] = result
                text = "known result, --force computes again"
            elif old:
                text = f"evaluated again, with other {' and '.join(changed)}"
            else:
                text = "evaluated again, the result is of an earlier version"
            if engine.host.index == 0:
                console.say(f"{' '.join(part)} at step {step}: {text}")
        return known

    def _identity(self, part, step):
        names = "evaluation", "task", "split", "step"
        return dict(zip(names, (self.name, *part, step), strict=True))

    def _key(self, part, model, checkpoint, bindings):
        """The key of a result, as it is read back from its file."""
        settings = {
            "model": type(model).__name__,
            "dtype_policy": model.dtype_policy.name,
            **self.settings(),
        }
        return {
            "checkpoint": checkpoint,
            "configuration": short_hash(json.dumps(bindings, sort_keys=True)),
            "settings": json.loads(json.dumps(settings)),
            "examples": self.hash_examples(part),
        }

    def _function(self, engine):
        """The compiled function, kept for the next step: compiling takes long."""
        if self._compiled[0] is not engine:
            function = self.batch_function(engine.model)
            self._compiled = engine, engine.compile(function, self.any_rows)
        return self._compiled[1]


def short_hash(text):
    """Returns 16 hexadecimal digits of the SHA-256 of a str or of bytes."""
    data = text.encode() if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:16]


def function_name(function):
    """Returns what a function is called, with the arguments of a partial one."""
    if isinstance(function, functools.partial):
        arguments = f"{function.args}, {function.keywords}"
        return f"{function_name(function.func)}({arguments})"
    function = function if hasattr(function, "__qualname__") else type(function)
    return f"{function.__module__}.{function.__qualname__}"


class TextEvaluation(Evaluation):
    """An evaluation of a task's splits, each read once.

    Args:
        task: registered name, `seqio.Task` or `seqio.Mixture`, whose tasks are
            evaluated one by one; None for the run's.
        run: a `Run`, whose vocabulary counts, as do its task and lengths where none are
            given.
        feature_lengths: dictionary of ints, as in training; longer inputs are trimmed.
        batch_size: int, on all replicas.
        splits: list of str, also slices as `validation[:100]` of TensorFlow Datasets;
            None for every split that is there, has labels, and a name that does not
            start with "train".
        max_examples: int, only the first of each split; None for all.
        feature_converter: a `seqio.FeatureConverter` class.
        period, name: see `Evaluation`.

    Raises:
        ValueError: an unknown task or split, or none beside training.
    """

    def __init__(
        self,
        task=None,
        *,
        run=None,
        feature_lengths=None,
        batch_size=64,
        splits=None,
        max_examples=None,
        feature_converter=seqio.EncDecFeatureConverter,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.task, feature_lengths = data_of(run, task, feature_lengths)
        check_feature_lengths(feature_lengths, feature_converter)
        check_integers(batch_size=batch_size)
        if max_examples is not None:
            check_integers(max_examples=max_examples)
        self.vocabularies = describe_vocabularies(self.task)
        self.feature_lengths = dict(feature_lengths)
        self.batch_size = batch_size
        self.max_examples = max_examples
        self.feature_converter = feature_converter
        self._asked_for = splits is not None
        self._split_names = list(splits) if splits else default_splits(self.task)
        if not self._split_names:
            raise UserError(
                f"{self.task.name} has no split beside training to evaluate on. It "
                f"has: {', '.join(sorted(self.task.splits))}. Set splits."
            )
        for split in self._split_names:
            check_split(self.task, split)
        self._told = set()  # the parts whose long examples were logged
        self._tasks = {task.name: task for task in seqio.get_subtasks(self.task)}
        self._splits = {
            (name, split): TaskSplit(task, split, self.feature_lengths, max_examples)
            for name, task in self._tasks.items()
            for split in self._split_names
            if has_split(task, split)
        }

    def parts(self):
        """Returns the (task name, split) pairs of the results.

        Raises:
            FileNotFoundError: the files of all of them are missing.
        """
        parts, missing = [], []
        for part, split in self._splits.items():
            if not self._asked_for and split.missing:
                missing.append(split.missing)
            elif self._wanted(split):
                parts.append(part)
        if missing and not parts:
            raise missing[0]
        return parts

    def _wanted(self, split):
        """Whether a `TaskSplit` is to be evaluated: asked for, or with labels."""
        return self._asked_for or split.has_labels

    def settings(self):
        converter = self.feature_converter
        return {
            "feature_lengths": self.feature_lengths,
            "max_examples": self.max_examples,
            "feature_converter": function_name(converter) if converter else None,
            "vocabularies": {
                name: {key: x for key, x in vocabulary.items() if key != "file"}
                for name, vocabulary in self.vocabularies.items()
            },
        }

    def hash_examples(self, part):
        return self._splits[part].hash

    def metrics(self, part, predictions):
        """Returns the task's metrics; none where nothing has a label."""
        split = self._splits[part]
        if not split.has_labels:
            return {}
        return compute_metrics(split.task, split.examples, predictions.outputs())

    def metric_names(self, wanted=""):
        results = self.tried_results(wanted)
        return {name for result in results for name in metrics_by_name(result)}

    def trial(self, examples):
        """Returns what a perfect model predicts, as `metrics` takes it."""
        raise NotImplementedError

    def tried_results(self, wanted):
        """Returns results of a perfect model on the first examples, at step 0.

        If a name would be missed, they are of all examples: there are metrics of kinds
        of examples. Metrics that fail have the one name "".
        """
        results = []
        for part in self.parts():
            split = self._splits[part]
            result = {**self._identity(part, 0), "metrics": {}}
            prefix = "/".join([*result_names(result), ""])
            result["metrics"] = self._try(split, split.first)
            missed = wanted not in metrics_by_name(result)
            if wanted.startswith(prefix) and missed and "" not in result["metrics"]:
                result["metrics"] |= self._try(split, split.examples)
            results.append(result)
        return results

    def _try(self, split, examples):
        if not split.has_labels:
            return {}
        outputs = self.trial(examples).outputs()
        metrics_of(split.task, outputs)
        try:
            return compute_metrics(split.task, examples, outputs)
        except Exception as error:  # of a function of the user's
            logging.warning(
                "The metrics of %s %s cannot be tried on its targets: %r",
                split.task.name,
                split.split,
                error,
            )
            return {"": math.nan}

    def predict_examples(self, part, model, function, remedy, feature_converter=None):
        """Calls a function on the batches of a part's examples, see `call_on_examples`.

        `remedy` is what the log says is done with long examples, and
        `feature_converter` counts where the evaluation has none. Returns facts of the
        examples, the results, and seconds.
        """
        split = self._splits[part]
        over_length = self.count_over_length(part, remedy)
        facts = {"examples": len(split.examples), "over_length": over_length}
        start = time.perf_counter()
        results = call_on_examples(
            function,
            split.examples,
            split.codec(self.feature_converter or feature_converter),
            length_buckets=padded_lengths(model, self.feature_lengths),
            batch_size=self.batch_size,
            description=" ".join(part),
        )
        return facts, results, time.perf_counter() - start

    def count_over_length(self, part, remedy):
        """Returns how many of a part's examples are too long; logs them once."""
        over = self._splits[part].over_length
        if over.over and part not in self._told:
            self._told.add(part)
            logging.warning("%s: %s", over, remedy)
        return over.over
