"""The likelihood that a trained model gives to texts, tokenizer included."""

import itertools

import numpy as np
import tensorflow as tf
from absl import logging

from remixer_tf.checkpoints import reading
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.lengths import count_over_length
from remixer_tf.decoding import check_writes, score
from remixer_tf.models import DecoderOnly
from remixer_tf.serving.text_to_text import build_for_run
from remixer_tf.serving.tokenizers import keeps_eos
from remixer_tf.training.backend_engine import compile_function


def text_scorer(
    model_dir,
    model,
    task,
    *,
    feature_lengths,
    step=None,
    dtype_policy="float32",
    vocabulary=None,
):
    """Restores a checkpoint of a run as a `TextScorer`.

    Args:
        model_dir, model, task, step, dtype_policy, vocabulary: see `text_to_text`.
        feature_lengths: dictionary of ints, see `TextScorer`.

    Returns:
        the `TextScorer`, and the checkpoint's step, an int.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        ValueError: the checkpoint is of another model or vocabulary, or what
            `TextScorer` raises.
    """
    model, task = build_for_run(model_dir, model, task, dtype_policy, vocabulary)
    scorer = TextScorer(model, task, feature_lengths)
    return scorer, reading.restore_model(model_dir, model, step)


class TextScorer:
    """Scores targets, given inputs: see `remixer_tf.decoding.score`.

    An encoder-decoder reads inputs of up to `feature_lengths["inputs"]` tokens and
    targets of up to `feature_lengths["targets"]`; longer ones lose their end, as in
    training. A language model reads both in one row, of up to the sum of
    `feature_lengths`; longer inputs lose their beginning, which is furthest from the
    targets. If its task has targets alone it is one of running text, and EOS stands
    behind neither inputs nor targets; else they have what the task's features have.

    Args:
        model: a built and restored `EncoderDecoder` or `DecoderOnly`.
        task: a `seqio.Task` or `seqio.Mixture`.
        feature_lengths: dictionary of ints.

    Attributes:
        model: the model.
        features: dictionary of `seqio.Feature`s, the task's.
        lengths: dictionary of ints, `feature_lengths`.
        one_row: bool, whether the model is a language model.
        row_length: int, the tokens that a language model reads.

    Raises:
        ValueError: the model writes no text, or the task lacks a feature.
    """

    def __init__(self, model, task, feature_lengths):
        check_writes(model)
        self.model = model
        self._task = task
        self.features = features = task.output_features
        self.lengths = dict(feature_lengths)
        self.one_row = isinstance(model, DecoderOnly)
        self.row_length = sum(self.lengths.values())
        needed = {"targets"} if self.one_row else {"inputs", "targets"}
        if not needed <= features.keys():
            raise ValueError(
                f"{task.name} has the features {', '.join(features)}. Scoring needs "
                f"{' and '.join(sorted(needed))}."
            )
        self._keeps_eos = {name: keeps_eos(task, name) for name in features}
        self._score = compile_function(lambda batch: score(model, batch)[:3], model)

    def encode(self, inputs, targets):
        """Turns two texts, bytes, into their ids: two lists of int, not cut."""
        targets_feature = self.features["targets"]
        feature = self.features.get("inputs", targets_feature)
        with_eos = "inputs" in self.features
        return encode_text(inputs, feature, with_eos), encode_text(
            targets, targets_feature, with_eos
        )

    def read(self, split):
        """Returns the (inputs, targets) of a split of the task, pairs of lists of int.

        Inputs that the task has cut already are counted and logged.

        Raises:
            ValueError: an unknown split, or a split without examples.
        """
        over = count_over_length(self._task, split, self.lengths)
        if over.over:
            logging.warning("%s: they are cut", over)
        examples = read_examples(self._task, split, self.lengths)
        empty = np.zeros([0], np.int32)
        return [
            (e.get("inputs", empty).tolist(), e["targets"].tolist()) for e in examples
        ]

    def windows(self, text, stride):
        """Cuts a text into targets of `stride` tokens, each with what comes before it.

        Together they are as long as the model reads. The first targets are that long by
        themselves, so that each token is a target once.

        Args:
            text: bytes.
            stride: int.

        Returns:
            list of (inputs, targets), lists of int.

        Raises:
            ValueError: the model is no language model, or the stride is longer than
                its rows.
        """
        length = self.row_length
        if not self.one_row or not 1 <= stride <= length:
            raise ValueError(
                f"A stride is for language models, and from 1 to {length}, the tokens "
                f"that this model reads. Received: {stride}"
            )
        ids = encode_text(text, self.features["targets"], with_eos=False)
        starts = [0, *range(length, len(ids), stride)]
        ends = [*starts[1:], len(ids)]
        return [
            (ids[max(end - length, 0) : start], ids[start:end])
            for start, end in zip(starts, ends, strict=True)
        ]

    def score(self, pairs, batch_size):
        """Yields (sum, number of tokens, greedy, cut) of each pair, in order.

        Args:
            pairs: iterable of (inputs, targets), lists of int.
            batch_size: int.

        Yields:
            float, int, bool as `remixer_tf.decoding.Scores` has them, and a bool,
            whether the model could not read the pair whole.
        """
        pairs = iter(pairs)
        while rows := list(itertools.islice(pairs, batch_size)):
            cut = [self._cut(*row) for row in rows]
            fill = [([], [])] * (batch_size - len(rows))  # of one shape, traced once
            make_batch = self._row_batch if self.one_row else self._batch
            results = self._score(make_batch(cut + fill))
            results = [x[: len(rows)].tolist() for x in results]
            shortened = [a != b for a, b in zip(rows, cut, strict=True)]
            yield from zip(*results, shortened, strict=True)

    def _cut(self, inputs, targets):
        """A pair as the model reads it."""
        if self.one_row:
            targets = targets[: self.row_length]
            over = len(inputs) + len(targets) - self.row_length
            return inputs[max(over, 0) :], targets
        return tuple(
            _shorten(ids, self.lengths[name], self._keeps_eos[name])
            for name, ids in (("inputs", inputs), ("targets", targets))
        )

    def _batch(self, rows):
        """What an encoder-decoder reads."""
        inputs = pad([row for row, _ in rows], self.lengths["inputs"])
        targets = pad([row for _, row in rows], self.lengths["targets"])
        return _with_weights(targets, targets > 0) | {"encoder_input_tokens": inputs}

    def _row_batch(self, rows):
        """What a language model reads, padded to quarters of its length."""
        joined = [inputs + targets for inputs, targets in rows]
        tokens = pad(joined, quarters(max(map(len, joined)), self.row_length))
        starts = np.array([[len(inputs)] for inputs, _ in rows])
        is_target = np.arange(tokens.shape[1]) >= starts
        return _with_weights(tokens, is_target & (tokens > 0))


def encode_text(text, feature, with_eos):
    """Turns a text into ids.

    Args:
        text: bytes or str.
        feature: a `seqio.Feature`.
        with_eos: bool, whether EOS follows where the feature has it.

    Returns:
        list of int.
    """
    vocabulary = feature.vocabulary
    ids = vocabulary.encode_tf(tf.constant(text)).numpy().tolist()
    return ids + [vocabulary.eos_id] * (with_eos and feature.add_eos)


def _shorten(ids, length, keeps_eos):
    if keeps_eos and len(ids) > length:
        return [*ids[: length - 1], ids[-1]]
    return ids[:length]


def quarters(longest, length):
    """So many quarters of a length as hold the longest row, at least one: an int.

    A graph is then traced for four lengths, and short rows do not wait for the longest.
    """
    quarter = -(-length // 4)
    return min(length, quarter * max(1, -(-longest // quarter)))


def pad(rows, length):
    """Fills rows up with 0.

    Args:
        rows: lists of int.
        length: int, at least that of the longest.

    Returns:
        int32 array `[len(rows), length]`.
    """
    padded = np.zeros([len(rows), length], np.int32)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded


def _with_weights(targets, weights):
    """The decoder's part of a batch."""
    batch = {
        "decoder_input_tokens": np.pad(targets, [(0, 0), (1, 0)])[:, :-1],
        "decoder_target_tokens": targets,
        "decoder_loss_weights": weights.astype(np.int32),
    }
    return {name: tf.constant(value) for name, value in batch.items()}
