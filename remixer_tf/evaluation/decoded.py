"""Decoding a task's splits, and scoring them with the task's own seqio metrics.

`seqio.Evaluator` takes registered names only, so it cannot score a task whose
vocabulary was replaced. The task's metric objects and seqio's TensorBoard logger are
used directly.
"""

import time
from typing import NamedTuple

import numpy as np
import rich.console
import rich.progress
from absl import logging

from remixer_tf.data.eval_batches import batch_examples
from remixer_tf.data.lengths import count_over_length
from remixer_tf.decoding import greedy_decode
from remixer_tf.evaluation.evaluation import TextEvaluation
from remixer_tf.evaluation.metrics import compute_metrics, list_predictions
from remixer_tf.evaluation.padding import padded_lengths
from remixer_tf.evaluation.settings import describe


class DecodedEvaluation(TextEvaluation):
    """The task's own metrics of decoded answers: `<task>/<split>/<metric>`.

    Longer inputs than `feature_lengths` are counted, reported and trimmed; targets are
    compared whole. A split that was asked for and has no labels gets predictions only.

    Args:
        task, feature_lengths, batch_size, splits, vocabulary, max_examples,
            feature_converter: see `TextEvaluation`.
        max_decode_length: int, tokens decoded at most; None for the targets' length.
        decode_fn: `(model, batch, max_length) -> Decoded`, see `remixer_tf.decoding`.
        average: a function of {task name: {metric: number}} that returns a number, or
            None where tasks are missing: printed below the tasks of a mixture. None
            for none.
        period, name: see `Evaluation`.

    Raises:
        ValueError: what `TextEvaluation` raises.
    """

    kind = "metrics"

    def __init__(
        self,
        *args,
        max_decode_length=None,
        decode_fn=greedy_decode,
        average=None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.max_decode_length = max_decode_length or self.feature_lengths["targets"]
        self.decode_fn = decode_fn
        self._average = average
        self._over_length = {}

    def settings(self, part):
        """Returns what can change a part's result, beside the model."""
        return {
            **super().settings(part),
            "max_decode_length": self.max_decode_length,
            "decode_fn": describe(self.decode_fn),
            "metrics": describe(list(self._tasks[part[0]].metric_fns)),
        }

    def run(self, *args, **kwargs):
        """Evaluates, see `Evaluation`, and prints the average of a mixture's tasks."""
        results = super().run(*args, **kwargs)
        for split in self._splits if self._average else ():
            metrics = {t: r[split]["metrics"] for t, r in results.items() if split in r}
            if (average := self._average(metrics)) is not None:
                print(f"{self.task.name} {split}: average {average:.1f}")
        return results

    def batch_function(self, model):
        """Returns decoding."""
        return lambda batch: self.decode_fn(model, batch, self.max_decode_length)

    def measure(self, part, model, function):
        """Measures, see `Evaluation`."""
        task = self._tasks[part[0]]
        examples = self.examples(part)
        if part not in self._over_length:
            over = count_over_length(
                task, part[1], self.feature_lengths, self.max_examples or 100_000
            )
            self._over_length[part] = over.over
            if over.over:
                logging.warning("%s: their inputs are trimmed", over)
        decoded = decode_examples(
            function,
            examples,
            feature_lengths=self.feature_lengths,
            length_buckets=padded_lengths(model, self.feature_lengths),
            batch_size=self.batch_size,
            max_length=self.max_decode_length,
            feature_converter=self.feature_converter,
            description=" ".join(part),
        )
        labelled = self.has_labels(part)
        result = {
            "examples": len(examples),
            "over_length": self._over_length[part],
            "decoded_tokens": int(np.count_nonzero(decoded.tokens)),
            "decoding_seconds": decoded.seconds,
            "metrics": compute_metrics(task, examples, decoded) if labelled else {},
        }
        return result, list_predictions(task, examples, decoded)


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


def decode_examples(
    decode,
    examples,
    *,
    feature_lengths,
    length_buckets,
    batch_size,
    max_length,
    feature_converter,
    description="decoding",
):
    """Decodes examples, sorted by length and padded to few lengths to save time.

    Args:
        decode: function of a batch that returns a `Decoded` of NumPy arrays.
        examples: list from `read_examples`.
        feature_lengths: dictionary of ints.
        length_buckets: list of dictionaries, see `padded_lengths`.
        batch_size: int.
        max_length: int, tokens decoded at most.
        feature_converter: a `seqio.FeatureConverter` class.
        description: str, beside the progress bar.

    Returns:
        `DecodedExamples`.
    """
    batches = batch_examples(
        examples,
        feature_lengths=feature_lengths,
        batch_size=batch_size,
        length_buckets=length_buckets,
        feature_converter=feature_converter,
    )
    tokens = np.zeros([len(examples), max_length], np.int32)
    scores = None
    start = time.perf_counter()
    hidden = not rich.console.Console().is_terminal
    for batch in rich.progress.track(
        batches, description, transient=True, disable=hidden
    ):
        index = batch.pop("example_index").numpy()
        decoded = decode(batch)
        real = index >= 0
        tokens[index[real]] = decoded.tokens[real]
        if scores is None:  # of any shape that decode_fn gives
            scores = np.zeros([len(examples), *decoded.scores.shape[1:]], np.float32)
        scores[index[real]] = decoded.scores[real]
    return DecodedExamples(tokens, scores, time.perf_counter() - start)
