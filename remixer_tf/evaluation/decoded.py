"""Decoding a task's splits, and scoring them with the task's own seqio metrics.

`seqio.Evaluator` takes registered names only, so it cannot score a task whose
vocabulary was replaced. The task's metric objects and seqio's TensorBoard logger are
used directly.
"""

import time
from typing import NamedTuple

import numpy as np
import seqio
from seqio.metrics import ModelOutputType

from remixer_tf.decoding import greedy_decode
from remixer_tf.evaluation.batches import call_on_examples
from remixer_tf.evaluation.evaluation import TextEvaluation
from remixer_tf.evaluation.metrics import compute_metrics, list_predictions
from remixer_tf.evaluation.padding import padded_lengths
from remixer_tf.evaluation.results import (
    print_row,
    read_records,
    write_result,
    write_submission,
)
from remixer_tf.evaluation.settings import describe
from remixer_tf.layers.arguments import check_integers


class DecodedEvaluation(TextEvaluation):
    """The task's own metrics of decoded answers: `<task>/<split>/<metric>`.

    Longer inputs than `feature_lengths` are counted, reported and trimmed; targets are
    compared whole. A split that was asked for and has no labels gets predictions only,
    and a test set of GLUE or SuperGLUE its file for the benchmark, in
    submission/<step>.

    Args:
        task, feature_lengths, batch_size, splits, vocabulary, max_examples,
            feature_converter: see `TextEvaluation`.
        max_decode_length: int, tokens decoded at most; None for the targets' length.
        decode_fn: `(model, batch, max_length) -> Decoded`, see `remixer_tf.decoding`.
        tables: list of what `remixer_tf.tasks.result_tables` makes, of a mixture: their
            rows are printed, and their averages are metrics of the mixture.
        period, name: see `Evaluation`.

    Raises:
        ValueError: what `TextEvaluation` raises.
    """

    kind = "metrics"
    any_rows = True  # Inference's graph, for inference's answers.

    def __init__(
        self,
        *args,
        max_decode_length=None,
        decode_fn=greedy_decode,
        tables=(),
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        if max_decode_length is None:
            max_decode_length = self.feature_lengths["targets"]
        check_integers(max_decode_length=max_decode_length)
        self.max_decode_length = max_decode_length
        self.decode_fn = decode_fn
        self._tables = tables if isinstance(self.task, seqio.Mixture) else ()

    def settings(self, part):
        """Returns what can change a part's result, beside the model."""
        return {
            **super().settings(part),
            "max_decode_length": self.max_decode_length,
            "decode_fn": describe(self.decode_fn),
            "metrics": describe(list(self._tasks[part[0]].metric_fns)),
        }

    def results(self, model_dir, model):
        """Returns the results, see `Evaluation`, and the averages of the tables."""
        results = super().results(model_dir, model)
        return results + self._averages(results)

    def run(self, model_dir, engine, step):
        """Evaluates, see `Evaluation`; prints tables and writes what they average."""
        # Not at the top: all tasks come with it, and t5, which takes seconds.
        from remixer_tf.tasks.submissions import has_submission, submission

        results = super().run(model_dir, engine, step)
        if engine.host.index > 0:
            return results
        of_tasks = [result for splits in results.values() for result in splits.values()]
        for split in dict.fromkeys(result["split"] for result in of_tasks):
            metrics = _metrics(of_tasks, split)
            for table in self._tables:
                print_row(f"{self.task.name} {split} at step {step}", table, metrics)
        for average in self._averages(of_tasks):
            write_result(model_dir, self.kind, average)
        for result in of_tasks:
            task = self._tasks[result["task"]]
            if has_submission(task, result["split"]):
                records = read_records(model_dir, result, self.examples_file)
                write_submission(model_dir, step, *submission(task, records))
        return results

    def _averages(self, results):
        """What the tables average, as results of the mixture."""
        averages = []
        for step, split in dict.fromkeys((r["step"], r["split"]) for r in results):
            metrics = _metrics((r for r in results if r["step"] == step), split)
            values = {
                f"{table.name}_average": average
                for table in self._tables
                if (average := table.average(metrics)) is not None
            }
            if values:
                averages.append(
                    {
                        "evaluation": self.name,
                        "task": self.task.name,
                        "split": split,
                        "step": step,
                        "settings": {},
                        "metrics": values,
                    }
                )
        return averages

    def batch_function(self, model):
        """Returns decoding."""
        return lambda batch: self.decode_fn(model, batch, self.max_decode_length)

    def measure(self, part, model, function):
        """Measures, see `Evaluation`."""
        task = self._tasks[part[0]]
        examples = self.examples(part)
        over_length = self.over_length(part, "their inputs are trimmed")
        decoded = decode_examples(
            function,
            examples,
            feature_lengths=self.feature_lengths,
            length_buckets=padded_lengths(model, self.feature_lengths),
            batch_size=self.batch_size,
            feature_converter=self.feature_converter,
            description=" ".join(part),
        )
        labelled = self.has_labels(part)
        result = {
            "examples": len(examples),
            "over_length": over_length,
            "decoded_tokens": int(np.count_nonzero(decoded.tokens)),
            "decoding_seconds": decoded.seconds,
            "metrics": compute_metrics(task, examples, decoded.outputs())
            if labelled
            else {},
        }
        return result, list_predictions(task, examples, decoded)


def _metrics(results, split):
    """{task: its metrics} of a split."""
    return {r["task"]: r["metrics"] for r in results if r["split"] == split}


class DecodedExamples(NamedTuple):
    """Predictions in the order of the examples.

    Attributes:
        tokens: int32 array `[num_examples, max_length]`, 0 after EOS.
        scores: float32 array `[num_examples, ...]`, see `Decoded`.
        seconds: float, time taken, tracing included.
    """

    tokens: np.ndarray
    scores: np.ndarray
    seconds: float

    def outputs(self):
        """What metrics of predictions take, see `compute_metrics`."""
        return {
            ModelOutputType.PREDICTION: self.tokens,
            ModelOutputType.PREDICTION_WITH_AUX: (self.tokens, {"scores": self.scores}),
        }


def decode_examples(decode, examples, **options):
    """Decodes examples.

    Args:
        decode: function of a batch that returns a `Decoded` of NumPy arrays.
        examples: list from `read_examples`.
        options: of `call_on_examples`.

    Returns:
        `DecodedExamples`.
    """
    start = time.perf_counter()
    decoded = call_on_examples(
        decode, examples, **{"description": "decoding", **options}
    )
    seconds = time.perf_counter() - start
    return DecodedExamples(decoded.tokens, decoded.scores, seconds)
