"""Scoring given targets by their likelihood, with the task's own seqio metrics."""

from typing import NamedTuple

import numpy as np
import seqio

from remixer_tf.decoding import score
from remixer_tf.evaluation.base import TextEvaluation
from remixer_tf.evaluation.task_metrics import metrics_of, text_of


class ScoredEvaluation(TextEvaluation):
    """A task's metrics of the log-likelihood of its targets: `<task>/<split>/<metric>`.

    These are the task's metrics of (targets, scores), such as T5's
    `rank_classification`. A score is the sum of the log-probabilities of an example's
    target tokens, EOS included if the task appends it. Inputs and targets that are
    longer than `feature_lengths` are counted, reported and trimmed. Arguments and
    errors: see `TextEvaluation`.
    """

    kind = "score"
    remedy = "they are trimmed, and scored by what is left"
    examples_file = "scores.jsonl"
    columns = ("input", "target", "score")

    def check(self, model_dir, others=()):
        super().check(model_dir, others)
        for task in self._tasks.values():
            metrics_of(task, [seqio.metrics.ModelOutputType.SCORE])

    def batch_function(self, model):
        def scores(batch):
            scores = score(model, batch)
            return ScoredExamples(scores.sums, scores.num_tokens, scores.greedy)

        return scores

    def predict(self, part, model, function):
        facts, scored, _ = self.predict_examples(part, model, function)
        return {**facts, "target_tokens": int(scored.num_tokens.sum())}, scored

    def records(self, part, predictions):
        split = self._splits[part]
        for example, total, tokens, greedy in zip(
            split.examples, *predictions, strict=True
        ):
            yield {
                "input": text_of(split.task, example, "inputs"),
                "target": text_of(split.task, example, "targets"),
                "score": float(total),
                "tokens": int(tokens),
                "greedy": bool(greedy),
            }

    def trial(self, examples):
        zeros = np.zeros(len(examples))
        return ScoredExamples(zeros.astype("float32"), zeros.astype(int), zeros > 0)


class ScoredExamples(NamedTuple):
    """Scores `[num_examples]` in the order of the examples; see `Scores`."""

    sums: np.ndarray
    num_tokens: np.ndarray
    greedy: np.ndarray

    def outputs(self):
        """Returns the input of metrics of scores, see `compute_metrics`."""
        return {seqio.metrics.ModelOutputType.SCORE: self.sums}
