"""The likelihood that a trained model gives to texts, tokenizer included."""

import copy
import itertools
import numbers

import seqio
import tensorflow as tf
from absl import logging

from remixer_tf.data.codec import Codec, ragged
from remixer_tf.data.eval_batches import converter_for, read_examples
from remixer_tf.data.lengths import (
    check_feature_lengths,
    count_over_length,
    has_split,
)
from remixer_tf.data.pipeline import check_split
from remixer_tf.decoding import check_writes, score
from remixer_tf.engines.backend_engine import engine_of
from remixer_tf.errors import UserError


def text_scorer(run, model_dir, *, step=None):
    """Restores a checkpoint of a run, see `Run.restore`.

    Returns the `TextScorer`, and the checkpoint's step, an int.
    """
    engine, step = run.restore(model_dir, step, check_writes)
    task, lengths = run.get_task(), run.feature_lengths
    return TextScorer(engine.model, task, lengths, engine), step


class TextScorer:
    """Scores targets, given inputs, see `remixer_tf.decoding.score` and `Codec`.

    Raises a ValueError if the model writes no text, or the task lacks a feature.

    Args:
        model: a built and restored `EncoderDecoder` or `DecoderOnly`.
        task: a `seqio.Task` or `seqio.Mixture`.
        feature_lengths: dictionary of ints.
        engine: the `Engine` of the model. Its replicas share each batch. None for one
            device.

    Attributes:
        model: the model.
        codec: the `Codec` of task and model.
    """

    def __init__(self, model, task, feature_lengths, engine=None):
        check_writes(model)
        self.model = model
        self._task = task
        check_feature_lengths(feature_lengths, converter_for(model))
        self._set_codec(Codec(task, feature_lengths, converter_for(model)))
        features = task.output_features
        needed = {"targets"} if self.codec.one_row else {"inputs", "targets"}
        if not needed <= features.keys():
            raise UserError(
                f"{task.name} has the features {', '.join(features)}. Scoring needs "
                f"{' and '.join(sorted(needed))}."
            )
        engine = engine or engine_of(model)
        # One graph serves all sizes of batches.
        self._score = engine.compile(lambda x: score(model, x), any_rows=True)

    def _set_codec(self, codec):
        self.codec = codec
        ids = tf.RaggedTensorSpec([None, None], tf.int32)
        self._pairs = tf.function(codec.pairs, input_signature=[ids, ids])

    def keeping_ends(self):
        """Returns a scorer that cuts the beginning of inputs, see `Codec`."""
        other, codec = copy.copy(self), self.codec
        other._set_codec(Codec(self._task, codec.lengths, codec.converter, "start"))
        return other

    def encode(self, inputs, targets):
        """Returns the ids of two texts, bytes, as two lists of int, not trimmed."""
        return self.codec.ids("inputs", inputs), self.codec.ids("targets", targets)

    def read(self, split):
        """Returns the (inputs, targets) of a split of the task, pairs of lists of int.

        The tasks of a mixture follow each other. The log says where, and counts texts
        that are too long. Raises a ValueError for an unknown or empty split.
        """
        check_split(self._task, split)
        pairs, lengths = [], dict(self.codec.lengths)
        for task in seqio.get_subtasks(self._task):
            if not has_split(task, split):
                continue
            over = count_over_length(task, split, lengths)
            if over.over:
                logging.warning("%s: they are trimmed", over)
            examples = read_examples(task, split, lengths)
            inputs = [example.get("inputs", ()) for example in examples]
            targets = ragged([example["targets"] for example in examples])
            # Tasks of a mixture may trim differently.
            codec = Codec(task, lengths, self.codec.converter)
            targets = codec.trim("targets", targets)[0].to_list()
            if task is not self._task:
                first, last = len(pairs) + 1, len(pairs) + len(examples)
                logging.warning("%s %s: lines %d to %d", task.name, split, first, last)
            pairs += zip(map(list, inputs), targets, strict=True)
        return pairs

    def windows(self, text, stride):
        """Cuts a text, bytes, into targets of `stride` tokens after the tokens before.

        Inputs and targets together are as long as the model reads. The first targets
        have that length, so that each token is a target once. Returns a list of
        (inputs, targets), lists of int. Raises a ValueError if the model is no language
        model, or the stride is longer than its rows.
        """
        length = self.codec.row_length
        fits = isinstance(stride, numbers.Integral) and 1 <= stride <= length
        if not self.codec.one_row:
            raise UserError("A stride is for language models, which this model is not.")
        if not fits:
            raise UserError(
                f"stride must be an integer from 1 to {length}, the tokens that this "
                f"model reads. Received: stride={stride!r}"
            )
        ids = self.codec.ids("targets", text, eos=False)
        starts = [0, *range(length, len(ids), stride)]
        ends = [*starts[1:], len(ids)]
        return [
            (ids[max(end - length, 0) : start], ids[start:end])
            for start, end in zip(starts, ends, strict=True)
        ]

    def score(self, pairs, batch_size):
        """Yields (sum, number of tokens, greedy, trimmed) of each pair, in order.

        Args:
            pairs: iterable of (inputs, targets), lists of int.
            batch_size: int.

        Yields:
            float, int, bool, see `remixer_tf.decoding.Scores`, and whether the pair was
            trimmed.
        """
        for rows, _, scores, trimmed in self._batches(pairs, batch_size):
            results = [x[:rows].tolist() for x in (*scores[:3], trimmed)]
            yield from zip(*results, strict=True)

    def score_tokens(self, pairs, batch_size):
        """As `score`, but yields more of each pair.

        Yields:
            dictionary: `score`, float, `num_tokens`, int, `greedy` and `trimmed`, bool,
            as `score`; and of each token of the targets `tokens`, ids, and `log_probs`,
            natural logarithms: lists.
        """
        for rows, batch, scores, trimmed in self._batches(pairs, batch_size):
            tokens = batch["decoder_target_tokens"].numpy()
            counted = batch["decoder_loss_weights"].numpy() > 0
            for row in range(rows):
                yield {
                    "score": float(scores.sums[row]),
                    "num_tokens": int(scores.num_tokens[row]),
                    "greedy": bool(scores.greedy[row]),
                    "trimmed": bool(trimmed[row]),
                    "tokens": tokens[row][counted[row]].tolist(),
                    "log_probs": scores.log_probs[row][counted[row]].tolist(),
                }

    def _batches(self, pairs, batch_size):
        """Yields rows, the model's batch, its `Scores`, and which pairs are trimmed."""
        pairs = iter(pairs)
        while rows := list(itertools.islice(pairs, batch_size)):
            fill = [([], [])] * (batch_size - len(rows))  # of one shape, traced once
            inputs, targets = map(ragged, zip(*rows, *fill, strict=True))
            batch, kept, trimmed = self._pairs(inputs, targets)
            if self.codec.one_row:
                length = quarters(int(tf.reduce_max(kept)), self.codec.row_length)
                batch = {name: x[:, :length] for name, x in batch.items()}
            yield len(rows), batch, self._score(batch), trimmed.numpy()


def quarters(longest, length):
    """Rounds the longest row up to quarters of a length: four lengths to trace."""
    quarter = -(-length // 4)
    return min(length, quarter * max(1, -(-longest // quarter)))
