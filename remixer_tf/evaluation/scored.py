"""Scoring given targets by their likelihood, with the task's own seqio metrics."""

from typing import NamedTuple

import numpy as np
from seqio.metrics import ModelOutputType

from remixer_tf.data.eval_batches import converter_for
from remixer_tf.decoding import score
from remixer_tf.evaluation.evaluation import TextEvaluation
from remixer_tf.evaluation.metrics import metrics_of, text_of


class ScoredEvaluation(TextEvaluation):
    """A task's metrics of the log-likelihood of its targets: `<task>/<split>/<metric>`.

    These are the task's metrics of (targets, scores), such as T5's
    `rank_classification`; a score is the sum of the log-probabilities of an example's
    target tokens, EOS included if the task appends it. Encoder-decoders and language
    models are scored alike. Longer inputs and targets than `feature_lengths` are
    counted, reported and trimmed.

    Args:
        task, run, feature_lengths, batch_size, splits, max_examples: see
            `TextEvaluation`. A language model reads rows of inputs and targets
            together.
        feature_converter: a `seqio.FeatureConverter` class; None for the one that fits
            the model, see `converter_for`.
        period, name: see `Evaluation`.

    Raises:
        ValueError: what `TextEvaluation` raises.
    """

    kind = "score"
    examples_file = "scores.jsonl"
    columns = ("input", "target", "score")

    def __init__(self, *args, feature_converter=None, **kwargs):
        super().__init__(*args, feature_converter=feature_converter, **kwargs)

    def check(self, model_dir, others=()):
        super().check(model_dir, others)
        for task in self._tasks.values():
            metrics_of(task, [ModelOutputType.SCORE])

    def batch_function(self, model):
        """Returns the scores of a batch, but those of single tokens."""

        def scores(batch):
            scores = score(model, batch)
            return ScoredExamples(scores.sums, scores.num_tokens, scores.greedy)

        return scores

    def predict(self, part, model, function):
        remedy = "they are trimmed, and scored by what is left"
        facts, scored, _ = self.predict_examples(
            part, model, function, remedy, converter_for(model)
        )
        return {**facts, "target_tokens": int(scored.num_tokens.sum())}, scored

    def records(self, part, predictions):
        split = self._splits[part]
        return _list_scores(split.task, split.examples, predictions)

    def trial(self, examples):
        """Returns equal scores, see `TextEvaluation`."""
        zeros = np.zeros(len(examples))
        return ScoredExamples(zeros.astype("float32"), zeros.astype(int), zeros > 0)


class ScoredExamples(NamedTuple):
    """Scores in the order of the examples; see `remixer_tf.decoding.Scores`.

    Attributes:
        sums: float32 array `[num_examples]`.
        num_tokens: int32 array `[num_examples]`.
        greedy: bool array `[num_examples]`.
    """

    sums: np.ndarray
    num_tokens: np.ndarray
    greedy: np.ndarray

    def outputs(self):
        """What metrics of scores take, see `compute_metrics`."""
        return {ModelOutputType.SCORE: self.sums}


def _list_scores(task, examples, scored):
    """Yields what `scores.jsonl` says about each example."""
    for example, total, tokens, greedy in zip(examples, *scored, strict=True):
        yield {
            "input": text_of(task, example, "inputs"),
            "target": text_of(task, example, "targets"),
            "score": float(total),
            "tokens": int(tokens),
            "greedy": bool(greedy),
        }
