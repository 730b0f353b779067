"""Decoding a task's splits, and scoring them with the task's own seqio metrics.

`seqio.Evaluator` takes only registered names, not a task with another vocabulary.
"""

import math
from typing import NamedTuple

import numpy as np
import seqio

from remixer_tf.data.codec import ragged
from remixer_tf.decoding import greedy_decode
from remixer_tf.errors import check_integers
from remixer_tf.evaluation.base import TextEvaluation, function_name
from remixer_tf.evaluation.results import print_table, write_result
from remixer_tf.evaluation.task_metrics import list_predictions


class DecodedEvaluation(TextEvaluation):
    """The task's own metrics of decoded answers: `<task>/<split>/<metric>`.

    Inputs that are longer than `feature_lengths` are counted, reported and trimmed.
    Targets are compared whole. A requested split without labels has predictions only.

    Args:
        max_length: int, tokens decoded at most; None for the targets' length.
        decode_fn: `(model, batch, max_length) -> Decoded`, see `remixer_tf.decoding`.
        tables: list of `ResultTable`s, see `remixer_tf.tasks.result_tables`. Their
            averages are metrics of the mixture, `<mixture>/<split>/<table>_average`.

    Other arguments and errors: see `TextEvaluation`.
    """

    kind = "metrics"
    remedy = "their inputs are trimmed"
    decodes = True  # see `check_own_layers`
    any_rows = True  # Inference's graph, for inference's answers.

    def __init__(
        self,
        *args,
        max_length=None,
        decode_fn=greedy_decode,
        tables=(),
        feature_converter=seqio.EncDecFeatureConverter,
        **kwargs,
    ):
        super().__init__(*args, feature_converter=feature_converter, **kwargs)
        if max_length is None:
            max_length = self.feature_lengths["targets"]
        check_integers(max_length=max_length)
        self.max_length = max_length
        self.decode_fn = decode_fn
        self._tables = tables if isinstance(self.task, seqio.Mixture) else ()

    def settings(self):
        return {
            **super().settings(),
            "max_decode_length": self.max_length,  # as earlier results have it
            "decode_fn": function_name(self.decode_fn),
        }

    def results(self, model_dir, model, bindings=None):
        results = super().results(model_dir, model, bindings)
        return results + self._averages(results)

    def tried_results(self, wanted):
        results = super().tried_results(wanted)
        averages = self._averages(results)
        failed = {r["split"] for r in results if "" in r["metrics"]}
        for split in failed if self._tables else ():
            averages.append(self._average(0, split, {"": math.nan}))
        return results + averages

    def run(self, model_dir, engine, step, **kwargs):
        results = super().run(model_dir, engine, step, **kwargs)
        of_tasks = [result for splits in results.values() for result in splits.values()]
        for average in self._averages(of_tasks):
            splits = results.setdefault(average["task"], {})
            splits[average["split"]] = average
            if engine.host.index == 0:
                write_result(model_dir, self.kind, average)
        if engine.host.index == 0 and self.task.name in results.keys() - self._tasks:
            print_table(self.task.name, step, results[self.task.name])
        return results

    def _averages(self, results):
        """Returns the averages of the tables, as results of the mixture."""
        averages = []
        for step, split in dict.fromkeys((r["step"], r["split"]) for r in results):
            metrics = {
                r["task"]: r["metrics"]
                for r in results
                if (r["step"], r["split"]) == (step, split)
            }
            values = {
                f"{table.name}_average": average
                for table in self._tables
                if (average := table.average(metrics)) is not None
            }
            if values:
                averages.append(self._average(step, split, values))
        return averages

    def _average(self, step, split, values):
        part = self.task.name, split
        return {**self._identity(part, step), "metrics": values}

    def batch_function(self, model):
        return lambda batch: self.decode_fn(model, batch, self.max_length)

    def predict(self, part, model, function):
        facts, decoded, seconds = self.predict_examples(part, model, function)
        facts["decoded_tokens"] = int(np.count_nonzero(decoded.tokens))
        facts["decoding_seconds"] = seconds
        return facts, DecodedExamples(decoded.tokens, decoded.scores)

    def records(self, part, predictions):
        split = self._splits[part]
        return list_predictions(split.task, split.examples, predictions)

    def trial(self, examples):
        rows = ragged([example["targets"] for example in examples])
        return DecodedExamples(rows.to_tensor().numpy(), np.zeros(len(examples)))


class DecodedExamples(NamedTuple):
    """Predictions in the order of the examples."""

    tokens: np.ndarray  # int32 `[num_examples, max_length]`, 0 after EOS
    scores: np.ndarray  # float32 `[num_examples, ...]`, see `Decoded`

    def outputs(self):
        """Returns the input of metrics of predictions, see `compute_metrics`."""
        kinds = seqio.metrics.ModelOutputType  # late: `remixer_tf.imports`
        return {
            kinds.PREDICTION: self.tokens,
            kinds.PREDICTION_WITH_AUX: (self.tokens, {"scores": self.scores}),
        }
