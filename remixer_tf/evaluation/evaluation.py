"""What to evaluate and how, for `remixer_tf.eval` and while training alike.

Results are files in the folder of the run, and nothing else remembers them: a run that
was killed knows what it has evaluated, which step was best, and whether to stop.
"""

import json

import seqio
from absl import logging

from remixer_tf.checkpoints.vocabularies import check_vocabularies
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.lengths import (
    check_feature_lengths,
    count_over_length,
    has_split,
)
from remixer_tf.data.pipeline import check_split, get_task
from remixer_tf.data.vocabularies import describe_vocabularies
from remixer_tf.evaluation.results import (
    print_table,
    read_results,
    write_examples,
    write_result,
)
from remixer_tf.evaluation.settings import (
    describe,
    hash_examples,
    hash_model,
    hash_weights,
)
from remixer_tf.evaluation.splits import default_splits, first_examples, have_labels
from remixer_tf.layers.arguments import check_integers


class Evaluation:
    """One result for each of its parts, pairs of a task's and a split's name.

    A result is known by the evaluation's kind and name, the part, the checkpoint (its
    step and a hash of its weights) and the settings. A subclass says what its parts and
    settings are, and measures.

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

    def parts(self):
        """Returns the (task name, split) pairs of the results."""
        raise NotImplementedError

    def settings(self, part):
        """Returns what can change a part's result, beside the model: a dictionary."""
        raise NotImplementedError

    def measure(self, part, model, function):
        """Measures.

        Args:
            part: (task name, split).
            model: a built `keras.Model`.
            function: the compiled `batch_function`.

        Returns:
            what the result holds beside its identity, a dictionary with `metrics`,
            {name: number}; and the predictions, an iterable of dictionaries, or None.
        """
        raise NotImplementedError

    def batch_function(self, model):
        """Returns the function of a batch that `measure` calls on the replicas."""
        raise NotImplementedError

    def check(self, model_dir, others=()):
        """Raises, before a run starts, if it could not be evaluated.

        Args:
            model_dir: folder of the run.
            others: list of all evaluations of the run.

        Raises:
            ValueError: the run has another vocabulary, there is nothing to score, or
                another evaluation would write the same files.
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
                raise ValueError(
                    f"Two evaluations of {'/'.join(min(shared))} have the same name "
                    f"{self.name!r}: their results would overwrite each other. Give "
                    "each a name, or make them in gin scopes, as @a/LossEvaluation() "
                    "where LossEvaluation.name = @scope()."
                )

    def results(self, model_dir, model):
        """Returns the results, of all steps, that have the settings of now: a list."""
        parts = {part: self._settings(part, model) for part in self.parts()}
        return [
            result
            for result in read_results(model_dir, self.kind)
            if result.get("evaluation") == self.name
            and parts.get((result["task"], result["split"])) == result["settings"]
        ]

    def run(self, model_dir, engine, step):
        """Evaluates what has no result yet, writes it, and prints all.

        All hosts call it. The first of them writes and prints.

        Args:
            model_dir: folder of the run.
            engine: the `Engine` that has the model.
            step: int, that of the model's weights.

        Returns:
            dictionary task name -> split -> result.
        """
        model = engine.model
        weights = hash_weights(model, engine.to_numpy)
        known = {
            (result["task"], result["split"]): result
            for result in self.results(model_dir, model)
            if (result["step"], result.get("weights")) == (step, weights)
        }
        engine.host.barrier()  # All know the same, before the first writes more.
        writes = engine.host.index == 0
        results = {}
        for part in self.parts():
            if part not in known:
                measured, predictions = self.measure(
                    part, model, self._function(engine)
                )
                known[part] = {
                    "evaluation": self.name,
                    "task": part[0],
                    "split": part[1],
                    "step": step,
                    "weights": weights,
                    "settings": self._settings(part, model),
                    **measured,
                }
                if writes:
                    self._write(model_dir, known[part], predictions)
            results.setdefault(part[0], {})[part[1]] = known[part]
        for task, splits in results.items() if writes else ():
            print_table("/".join(filter(None, (self.name, task))), step, splits)
        return results

    def _write(self, model_dir, result, predictions):
        texts = None
        if predictions is not None:
            texts = write_examples(
                model_dir, result, predictions, self.examples_file, self.columns
            )
        write_result(model_dir, self.kind, result, texts)

    def _settings(self, part, model):
        """All that a result was made with, as it is read back from its file."""
        settings = {
            "model": hash_model(model),
            "dtype_policy": model.dtype_policy.name,
            **self.settings(part),
        }
        return json.loads(json.dumps(settings))

    def _function(self, engine):
        """The compiled function, kept for the next step: compiling takes long."""
        if self._compiled[0] is not engine:
            function = self.batch_function(engine.model)
            self._compiled = engine, engine.compile(function, self.any_rows)
        return self._compiled[1]


class TextEvaluation(Evaluation):
    """An evaluation of a task's splits, each read once.

    Args:
        task: registered name, `seqio.Task` or `seqio.Mixture`, whose tasks are
            evaluated one by one.
        feature_lengths: dictionary of ints, as in training; longer inputs are trimmed.
        batch_size: int, on all replicas.
        splits: list of str, also slices as `validation[:100]` of TensorFlow Datasets;
            None for every split that is there, has labels, and a name that does not
            start with "train".
        vocabulary: None, or the `seqio.Vocabulary` to use in place of the task's.
        max_examples: int, only the first of each split; None for all.
        feature_converter: a `seqio.FeatureConverter` class.
        period, name: see `Evaluation`.

    Raises:
        ValueError: an unknown task or split, or none beside training.
    """

    def __init__(
        self,
        task,
        *,
        feature_lengths,
        batch_size=64,
        splits=None,
        vocabulary=None,
        max_examples=None,
        feature_converter=seqio.EncDecFeatureConverter,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_feature_lengths(feature_lengths, feature_converter)
        check_integers(batch_size=batch_size)
        if max_examples is not None:
            check_integers(max_examples=max_examples)
        self.task = get_task(task, vocabulary)
        self.vocabularies = describe_vocabularies(self.task)
        self.feature_lengths = dict(feature_lengths)
        self.batch_size = batch_size
        self.max_examples = max_examples
        self.feature_converter = feature_converter
        self._asked_for = splits is not None
        self._splits = list(splits) if splits else default_splits(self.task)
        if not self._splits:
            raise ValueError(
                f"{self.task.name} has no split beside training to evaluate on. It "
                f"has: {', '.join(sorted(self.task.splits))}. Set splits."
            )
        for split in self._splits:
            check_split(self.task, split)
        self._tasks = {task.name: task for task in seqio.get_subtasks(self.task)}
        self._first = {}  # (task name, split) -> its first examples
        self._missing = {}  # (task name, split) -> why it could not be read
        self._examples = {}  # (task name, split) -> all of them
        self._over_length = {}  # (task name, split) -> how many are

    def parts(self):
        """Returns the (task name, split) pairs of the results.

        Raises:
            FileNotFoundError: the files of all of them are missing.
        """
        parts = [part for part in self._candidates() if self._wanted(part)]
        if not parts and self._missing:
            raise next(iter(self._missing.values()))
        return parts

    def _candidates(self):
        for task in self._tasks.values():
            for split in self._splits:
                part = task.name, split
                if has_split(task, split) and (self._asked_for or self._is_there(part)):
                    yield part

    def _is_there(self, part):
        """Whether a part can be read; if not, it is logged once."""
        if part not in self._missing:
            try:
                self._first_examples(part)
            except FileNotFoundError as error:
                logging.warning("%s %s is left out: %s", *part, error)
                self._missing[part] = error
        return part not in self._missing

    def _wanted(self, part):
        """Whether a part is to be evaluated: asked for, or with labels."""
        return self._asked_for or self.has_labels(part)

    def has_labels(self, part):
        """Whether a part has anything to score."""
        return have_labels(self._first_examples(part))

    def _first_examples(self, part):
        if part not in self._first:
            self._first[part] = first_examples(
                self._tasks[part[0]], part[1], self.feature_lengths
            )
            if not have_labels(self._first[part]):
                logging.warning("%s %s has no labels: nothing to score.", *part)
        return self._first[part]

    def settings(self, part):
        """Returns what can change a part's result, beside the model."""
        return {
            "feature_lengths": self.feature_lengths,
            "max_examples": self.max_examples,
            "feature_converter": describe(self.feature_converter),
            "vocabularies": {
                name: {key: x for key, x in vocabulary.items() if key != "file"}
                for name, vocabulary in self.vocabularies.items()
            },
            "first_examples": hash_examples(self._first_examples(part)),
        }

    def examples(self, part):
        """Returns a part's examples, see `read_examples`."""
        if part not in self._examples:
            self._examples[part] = read_examples(
                self._tasks[part[0]], part[1], self.feature_lengths, self.max_examples
            )
        return self._examples[part]

    def over_length(self, part, remedy):
        """Returns how many of a part's examples are longer than `feature_lengths`.

        The first time it logs them, with `remedy`, a str that says what is done.
        """
        if part not in self._over_length:
            limit = self.max_examples or 100_000
            over = count_over_length(
                self._tasks[part[0]], part[1], self.feature_lengths, limit
            )
            self._over_length[part] = over.over
            if over.over:
                logging.warning("%s: %s", over, remedy)
        return self._over_length[part]
