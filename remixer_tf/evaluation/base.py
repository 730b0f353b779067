"""Evaluations, in training and by `remixer_tf eval`.

Results are files in the folder of the run. From these alone, a run that was killed
knows which steps it has evaluated, which was best, and whether to stop.
"""

import functools
import hashlib
import json
import math
import time

import seqio
from absl import logging

from remixer_tf import console
from remixer_tf.arguments import TheRun
from remixer_tf.checkpoints.vocabularies import check_vocabularies
from remixer_tf.data.codec import Codec
from remixer_tf.data.eval_batches import (
    converter_for,
    padded_lengths,
    xla_of_answers,
)
from remixer_tf.data.lengths import (
    check_feature_lengths,
    count_over_length,
    has_split,
    warn_of_changes,
)
from remixer_tf.data.pipeline import check_split, data_of
from remixer_tf.data.vocabularies import describe_vocabularies
from remixer_tf.errors import UserError, check_integers
from remixer_tf.evaluation.calls import call_on_examples
from remixer_tf.evaluation.results import (
    KINDS,
    metrics_by_name,
    print_table,
    read_result,
    read_results,
    result_names,
    write_examples,
    write_result,
)
from remixer_tf.evaluation.splits import TaskSplit, default_splits
from remixer_tf.evaluation.task_metrics import compute_metrics, metrics_of


class Evaluation:
    """Computes one result for each of its parts, (task name, split) pairs.

    A result has a key. It holds hashes of `checkpoint`, `examples` and `configuration`
    (the bindings given to `run`), and the `settings` of the evaluation. A result with
    the same key is not computed again. The key does not depend on the code.

    A subclass has these methods:

    - `parts()`: the parts;
    - `settings()`: arguments that can change a result, a dictionary for JSON;
    - `hash_examples(part)`: a hash of all examples of a part, a str;
    - `batch_function(model)`: the function of a batch that the engine compiles;
    - `predict(part, model, function)`: calls it on a part. Returns a dictionary of
      facts, which the result holds next to its metrics, and predictions;
    - `metrics(part, predictions)`: {name: number};
    - `metric_names(wanted)`: the set of "name/task/split/metric" that results will
      have. One that ends with "/" stands for all with that beginning. The name
      `wanted` may need a closer look.

    Args:
        period: int, steps between evaluations. The last step is always evaluated.
        name: str, distinguishes evaluations of the same splits in eval/<name> and in
            TensorBoard; None or "" for none. In gin, `@scope()` is the name of the
            scope.
    """

    kind = None  # the name of the file of a result
    any_rows = False  # see `Engine.compile`
    examples_file = "predictions.jsonl"  # of `records`
    columns = ("input", "target", "prediction")  # of records in TensorBoard
    vocabularies = None  # of text, see `describe_vocabularies`

    def __init__(self, *, period=1000, name=None):
        self.period = period
        self.name = name or ""
        self._compiled = None, None

    def records(self, part, predictions):
        """Returns a dictionary to write for each example, or None."""

    def check(self, model_dir, others=()):
        """Raises a ValueError, before a run starts, if it could not be evaluated.

        Reasons are another vocabulary, nothing to score, or another evaluation of the
        run, among `others` or earlier, that writes the same files or gives a metric of
        the same name.
        """
        if self.vocabularies:
            check_vocabularies(model_dir, self.vocabularies)
        parts = set(self.parts())
        given = {}  # by what else: {name of a metric: what gives it}
        before = True
        for other in others:
            if other is self:
                before = False
                continue
            if not isinstance(other, Evaluation) or other.name != self.name:
                continue
            if not (shared := parts.intersection(other.parts())):
                continue
            if other.kind == self.kind:
                raise UserError(
                    f"Two evaluations of {'/'.join(min(shared))} have the same name "
                    f"{self.name!r}: their results would overwrite each other. Give "
                    "each a name, or make them in gin scopes, as @a/LossEvaluation() "
                    "where LossEvaluation.name = @scope()."
                )
            if before:  # Those after it compare themselves with it.
                given |= dict.fromkeys(other.metric_names(), type(other).__name__)
        for kind in KINDS:
            for result in read_results(model_dir, kind) if kind != self.kind else ():
                if (
                    result.get("evaluation", "") == self.name
                    and (result["task"], result["split"]) in parts
                ):
                    file = f"{kind}.json of step {result['step']}"
                    given |= dict.fromkeys(metrics_by_name(result), file)
        names = self.metric_names() & given.keys() if given else ()
        # Others stand for metrics that failed on a few examples, see `metric_names`.
        if twice := [name for name in names if not name.endswith("/")]:
            name = min(twice)
            raise UserError(
                f"{type(self).__name__} and {given[name]} both give {name}: two values "
                "would have one name. Name one of the evaluations, as in "
                f"{type(self).__name__}.name = 'a': its metrics then begin with a/."
            )

    def results(self, model_dir, model, bindings=None):
        """Returns the list of results, of all steps, that have the present key."""
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
        """Evaluates parts without a result, writes their results, and prints all.

        All hosts call it. The first of them writes and prints. Returns {task name:
        {split: result}} for the `step` of the engine's model.

        Args:
            checkpoint: a function that returns a hash of the checkpoint, see
                `reading.hash_checkpoint`. Without one, None, no result is known.
            bindings: dictionary of str, the bindings of gin that can change a result.
            force: bool, whether to evaluate again what is known.
        """
        known = {}
        if checkpoint and not force:
            known = self._known(engine, model_dir, step, checkpoint(), bindings)
        engine.host.barrier()  # All hosts have read before the first one writes.
        writes = engine.host.index == 0
        results = {}
        for part in self.parts():
            result = known.get(part)
            if result is None:
                function = self._function(engine)
                facts, predictions = self.predict(part, engine.model, function)
                result = {**self._identity(part, step), **facts}
                examples = None
                # Predictions are written first, since a user's metrics may fail.
                records = self.records(part, predictions) if writes else None
                if records is not None:
                    names = self.examples_file, self.columns
                    examples = write_examples(model_dir, result, records, *names)
                result["metrics"] = metrics = self.metrics(part, predictions)
                units = {k: getattr(v, "unit", None) for k, v in metrics.items()}
                if units := {name: unit for name, unit in units.items() if unit}:
                    result["units"] = units
                if writes:
                    hashed = checkpoint() if checkpoint else None
                    result["key"] = self._key(part, engine.model, hashed, bindings)
                    write_result(model_dir, self.kind, result, examples)
            results.setdefault(part[0], {})[part[1]] = result
        for task, splits in results.items() if writes else ():
            print_table("/".join(filter(None, (self.name, task))), step, splits)
        return results

    def _known(self, engine, model_dir, step, checkpoint, bindings):
        """Returns {part: known result}, and prints for each old one if it counts."""
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
        """Returns the key of a result, as read back from its file."""
        settings = {
            "model": type(model).__name__,
            "dtype_policy": model.dtype_policy.name,
            **self.settings(),
        }
        text = json.dumps(bindings, sort_keys=True)
        return {
            "checkpoint": checkpoint,
            "configuration": hashlib.sha256(text.encode()).hexdigest()[:16],
            "settings": json.loads(json.dumps(settings)),
            "examples": self.hash_examples(part),
        }

    def _function(self, engine):
        """Returns the compiled function, kept for the next step."""
        if self._compiled[0] is not engine:
            function = self.batch_function(engine.model)
            xla = xla_of_answers(engine.model) if self.any_rows else None
            self._compiled = engine, engine.compile(function, self.any_rows, xla)
        return self._compiled[1]


def function_name(function):
    """Returns the name of a function, with the arguments of a partial one."""
    if isinstance(function, functools.partial):
        arguments = f"{function.args}, {function.keywords}"
        return f"{function_name(function.func)}({arguments})"
    function = function if hasattr(function, "__qualname__") else type(function)
    return f"{function.__module__}.{function.__qualname__}"


class TextEvaluation(Evaluation):
    """An evaluation of a task's splits, each read once.

    Args:
        task: registered name, `seqio.Task` or `seqio.Mixture`; None for the run's. The
            tasks of a mixture are evaluated one by one.
        run: a `Run`. Its vocabulary replaces the task's, and its task and lengths are
            the defaults.
        feature_lengths: dictionary of ints, as in training. Longer inputs are trimmed.
        batch_size: int, on all replicas.
        splits: list of str. Slices as `validation[:100]` of TensorFlow Datasets are
            allowed. None means every split that has files and labels, and a name that
            does not start with "train".
        max_examples: int, only the first of each split; None for all.
        feature_converter: a `seqio.FeatureConverter` class; None for the model's, see
            `converter_for`.
        period, name: see `Evaluation`.

    Raises:
        ValueError: an unknown task or split, or only training splits.
    """

    remedy = "they are trimmed"  # The log says this of long examples.
    decodes = False  # whether it asks the model for answers

    def __init__(
        self,
        task=None,
        *,
        run: TheRun | None = None,
        feature_lengths=None,
        batch_size=64,
        splits=None,
        max_examples=None,
        feature_converter=None,
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
        several = isinstance(splits, (list, tuple, type(None)))
        if not several or not all(isinstance(name, str) for name in splits or ()):
            raise UserError(
                "splits must be a list of names, such as ['dev'], or None. Received: "
                f"splits={splits!r:.200}"
            )
        self._asked_for = splits is not None
        self._split_names = list(splits) if splits else default_splits(self.task)
        if not self._split_names:
            raise UserError(
                f"{self.task.name} has no split beside training to evaluate on. It "
                f"has: {', '.join(sorted(self.task.splits))}. Set splits."
            )
        for split in self._split_names:
            check_split(self.task, split)
        self._over_length = {}  # {part: number of examples}
        self._tasks = {task.name: task for task in seqio.get_subtasks(self.task)}
        self._splits = {
            (name, split): TaskSplit(task, split, self.feature_lengths, max_examples)
            for name, task in self._tasks.items()
            for split in self._split_names
            if has_split(task, split)
        }

    def parts(self):
        """Returns the parts; raises FileNotFoundError if files of all are missing."""
        parts, missing = [], []
        for part, split in self._splits.items():
            if not self._asked_for and split.missing:
                missing.append(split)
            elif self._wanted(split):
                parts.append(part)
        if missing and not parts:
            raise missing[0].missing
        for split in missing:
            split.warn_left_out()
        return parts

    def _wanted(self, split):
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
        """Returns the task's metrics; none without labels."""
        split = self._splits[part]
        if not split.has_labels:
            return {}
        return compute_metrics(split.task, split.examples, predictions.outputs())

    def metric_names(self, wanted=""):
        results = self.tried_results(wanted)
        return {name for result in results for name in metrics_by_name(result)}

    def trial(self, examples):
        """Returns the predictions of a perfect model, for `metrics`."""
        raise NotImplementedError

    def tried_results(self, wanted):
        """Returns results of a perfect model on the first examples, at step 0.

        All examples are used if `wanted` is missing, since some metrics are of certain
        kinds of examples. Metrics that fail have the single name "".
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

    def codec(self, part, model):
        """Returns the `Codec` for batches of a part's examples."""
        converter = self.feature_converter or converter_for(model)
        return Codec(self._splits[part].task, self.feature_lengths, converter)

    def predict_examples(self, part, model, function):
        """Calls a function on the batches of a part's examples, see `call_on_examples`.

        Returns facts of the examples, results, and seconds.
        """
        examples = self._splits[part].examples
        over_length = self.count_over_length(part)
        facts = {"examples": len(examples), "over_length": over_length}
        start = time.perf_counter()
        results = call_on_examples(
            function,
            examples,
            self.codec(part, model),
            length_buckets=padded_lengths(model, self.feature_lengths),
            batch_size=self.batch_size,
            description=" ".join(part),
        )
        return facts, results, time.perf_counter() - start

    def count_over_length(self, part):
        """Counts a part's long examples, of at most 100,000, and logs them once."""
        if part not in self._over_length:
            split, most = self._splits[part], self.max_examples or 100_000
            over = count_over_length(
                split.task, split.split, self.feature_lengths, most
            )
            self._over_length[part] = over.over
            if over.over:
                logging.warning("%s: %s", over, self.remedy)
            if self.decodes:
                warn_of_changes(over)
        return self._over_length[part]
