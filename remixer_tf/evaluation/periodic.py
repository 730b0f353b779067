"""Evaluation while training, the best checkpoint and early stopping.

Results are files in the folder of the run, and nothing else remembers them: a run that
was killed knows what it has evaluated, which step was best, and whether to stop.
"""

import json
import os

import seqio
import tensorflow as tf

from remixer_tf.checkpoints.reading import restore_model
from remixer_tf.data.eval_batches import eval_dataset
from remixer_tf.data.images import eval_images
from remixer_tf.data.pipeline import get_task
from remixer_tf.decoding import greedy_decode
from remixer_tf.evaluation.results import read_results, write_result
from remixer_tf.evaluation.scoring import default_splits, evaluate_model, wait_for_each
from remixer_tf.models.build import build_model
from remixer_tf.objectives import losses, metrics
from remixer_tf.objectives.batches import targets_and_weights


class _Results:
    """What evaluations share whose results are files, one for each of their `parts`."""

    def is_done(self, model_dir, step):
        """Whether all results at `step` are there."""
        done = {
            (result["task"], result["split"])
            for result in read_results(model_dir, self.kind)
            if result["step"] == step
        }
        return done.issuperset(self.parts())


class _Evaluation(_Results):
    """What evaluations of a task share: the task, its splits and how to read them."""

    def __init__(
        self,
        task,
        *,
        period,
        feature_lengths,
        batch_size=64,
        splits=None,
        vocabulary=None,
        max_examples=None,
        feature_converter=seqio.EncDecFeatureConverter,
    ):
        self.task = get_task(task, vocabulary)
        self.period = period
        self.splits = list(splits or default_splits(self.task))
        self._options = {
            "feature_lengths": feature_lengths,
            "batch_size": batch_size,
            "max_examples": max_examples,
            "feature_converter": feature_converter,
        }

    def parts(self):
        """The (name of a task, split) pairs of its results."""
        return [(task.name, split) for task, split in self._tasks_and_splits()]

    def _tasks_and_splits(self):
        return [
            (task, split)
            for task in seqio.get_subtasks(self.task)
            for split in self.splits
            if split in task.splits
        ]


class _LossSums:
    """What loss evaluations share: the sums of `losses.cross_entropy` over batches."""

    kind = "loss"
    _sums = None

    def _add_up(self, model, batches):
        if self._sums is None:
            self._sums = tf.function(
                lambda batch: losses.cross_entropy(
                    model(batch, training=False), *targets_and_weights(batch)
                ),
                autograph=False,
            )
        totals = {}
        for batch in batches:
            batch.pop("example_index", None)
            for name, value in self._sums(batch).items():
                totals[name] = totals.get(name, 0.0) + float(value)
        return totals


class LossEvaluation(_LossSums, _Evaluation):
    """Teacher-forced loss and token accuracy: `<task>/<split>/{loss,accuracy,...}`.

    Args:
      task: registered name, `seqio.Task` or `seqio.Mixture`.
      period: int, steps between evaluations; the last step is always evaluated.
      feature_lengths: dictionary of ints; longer features are cut.
      batch_size: int.
      splits: list of str; None for every split whose name does not start with "train".
      vocabulary: None, or the `seqio.Vocabulary` to use in place of the task's.
      max_examples: int, only the first of each split; None for all.
      feature_converter: a `seqio.FeatureConverter` class.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._batches = {}

    def run(self, model_dir, model, step):
        """Evaluates and writes."""
        for task, split in self._tasks_and_splits():
            if (task.name, split) not in self._batches:
                self._batches[task.name, split] = eval_dataset(
                    task, split=split, **self._options
                )
            sums = self._add_up(model, self._batches[task.name, split])
            values = metrics.summarize(sums)
            result = {
                "task": task.name,
                "split": split,
                "step": step,
                "target_tokens": sums["weight"],
                "metrics": {
                    name: float(values[name])
                    for name in ("loss", "accuracy", "perplexity")
                },
            }
            write_result(model_dir, self.kind, result)


class ImageEvaluation(_LossSums, _Results):
    """Loss and top-1 accuracy of images: `<source's name>/<split>/{loss,accuracy}`.

    Args:
      source, transforms, batch_size: see `remixer_tf.data.images.eval_images`.
      period: int, steps between evaluations; the last step is always evaluated.
      split: str.
    """

    def __init__(
        self, source, transforms, *, period, batch_size=64, split="validation"
    ):
        self.period = period
        self._name = source.name
        self._split = split
        self._batches = eval_images(
            source, transforms, batch_size=batch_size, split=split
        )

    def parts(self):
        """The (name, split) pairs of its results."""
        return [(self._name, self._split)]

    def run(self, model_dir, model, step):
        """Evaluates and writes."""
        sums = self._add_up(model, self._batches)
        values = metrics.summarize(sums)
        result = {
            "task": self._name,
            "split": self._split,
            "step": step,
            "images": sums["weight"],
            "metrics": {name: float(values[name]) for name in ("loss", "accuracy")},
        }
        write_result(model_dir, self.kind, result)


class DecodedEvaluation(_Evaluation):
    """Decodes and scores with the task's own metrics: `<task>/<split>/<metric>`.

    Args:
      task, splits, vocabulary: see `LossEvaluation`.
      period: int, steps between evaluations; the last step is always evaluated.
      feature_lengths, batch_size, max_examples, max_decode_length, decode_fn,
        feature_converter: see `remixer_tf.evaluation.scoring.evaluate_model`.
    """

    kind = "metrics"

    def __init__(
        self, *args, max_decode_length=None, decode_fn=greedy_decode, **kwargs
    ):
        super().__init__(*args, **kwargs)
        self._options |= {
            "max_decode_length": max_decode_length,
            "decode_fn": decode_fn,
        }

    def run(self, model_dir, model, step):
        """Evaluates and writes."""
        evaluate_model(
            model_dir,
            model,
            self.task,
            step=step,
            splits=self.splits,
            **self._options,
        )


def evaluate_images(
    model_dir, model, evaluations, *, step=None, dtype_policy="float32"
):
    """Runs evaluations on checkpoints of a run, and prints what they give.

    What is evaluated already is not evaluated again.

    Args:
      model_dir, model, step, dtype_policy: see `evaluation.scoring.evaluate`.
      evaluations: list of `ImageEvaluation`.

    Raises:
      FileNotFoundError: there is no such checkpoint.
      ValueError: the checkpoint is of another model.
    """
    model = build_model(model, dtype_policy)
    for wanted in wait_for_each(model_dir) if step == "each" else [step]:
        restored = restore_model(model_dir, model, wanted)
        for evaluation in evaluations:
            if not evaluation.is_done(model_dir, restored):
                evaluation.run(model_dir, model, restored)
            for result in read_results(model_dir, evaluation.kind):
                name = result["task"], result["split"]
                if name in evaluation.parts() and result["step"] == restored:
                    values = (f"{k} {v:.4f}" for k, v in result["metrics"].items())
                    print(f"{'/'.join(name)} at step {restored}: {', '.join(values)}")


class Best:
    """Which step was best by a metric, and whether it is time to stop.

    Args:
      metric: str, such as 'mini_cogs/dev/exact_match' or 'mini_cogs/dev/loss'.
      mode: 'max' or 'min'.
      patience: int, training stops after so many evaluations without a better one;
        None does not stop it.
    """

    def __init__(self, metric, mode="max", patience=None):
        if mode not in ("max", "min"):
            raise ValueError(f"mode must be 'max' or 'min'. Received: {mode!r}")
        self.metric = metric
        self._sign = 1 if mode == "max" else -1
        self._patience = patience

    def find(self, model_dir):
        """Reads all results.

        Returns:
          (step, value, stop): of the best evaluation so far, None if there is none,
          and whether the last `patience` evaluations were no better.

        Raises:
          ValueError: evaluations ran, and none has the metric.
        """
        values, names = {}, set()
        for kind in (LossEvaluation.kind, DecodedEvaluation.kind):
            for result in read_results(model_dir, kind):
                for name, value in result["metrics"].items():
                    names.add(name := f"{result['task']}/{result['split']}/{name}")
                    if name == self.metric:
                        values[result["step"]] = value
        if not values:
            if names:
                raise ValueError(
                    f"No evaluation gives the metric {self.metric!r}. They give: "
                    f"{', '.join(sorted(names))}."
                )
            return None, None, False
        # Of equals, the first.
        step = max(values, key=lambda step: (self._sign * values[step], -step))
        since = sum(other > step for other in values)
        stop = self._patience is not None and since >= self._patience
        return step, values[step], stop


def write_best(model_dir, metric, step, value):
    """Writes <model_dir>/best.json, for people and programs."""
    with tf.io.gfile.GFile(os.path.join(model_dir, "best.json"), "w") as file:
        json.dump({"metric": metric, "step": step, "value": value}, file, indent=2)
