"""The likelihood that a trained model gives to texts, tokenizer included."""

import itertools

import numpy as np
import tensorflow as tf
from absl import logging

from remixer_tf.checkpoints import reading
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.lengths import count_over_length
from remixer_tf.decoding import check_writes, score
from remixer_tf.serving.pairs import PairBatches
from remixer_tf.serving.text_to_text import build_for_run
from remixer_tf.serving.tokenizers import keeps_eos
from remixer_tf.training.backend_engine import backend_engine, engine_of


def text_scorer(
    model_dir,
    model,
    task,
    *,
    feature_lengths,
    step=None,
    dtype_policy="float32",
    vocabulary=None,
    engine=backend_engine,
):
    """Restores a checkpoint of a run as a `TextScorer`.

    Args:
        model_dir, model, task, step, dtype_policy, vocabulary, engine: see
            `text_to_text`.
        feature_lengths: dictionary of ints, see `TextScorer`.

    Returns:
        the `TextScorer`, and the checkpoint's step, an int.

    Raises:
        FileNotFoundError: there is no such checkpoint.
        ValueError: the checkpoint is of another model or vocabulary, the engine is of
            several processes, or what `TextScorer` raises.
    """
    engine, task = build_for_run(
        model_dir, model, task, dtype_policy, vocabulary, engine
    )
    scorer = TextScorer(engine.model, task, feature_lengths, engine)
    return scorer, reading.restore_model(model_dir, engine.model, step)


class TextScorer:
    """Scores targets, given inputs: see `remixer_tf.decoding.score`.

    What the model reads of them is told at `PairBatches`. If a language model's task
    has targets alone it is one of running text, and EOS stands behind neither inputs
    nor targets; else they have what the task's features have.

    Args:
        model: a built and restored `EncoderDecoder` or `DecoderOnly`.
        task: a `seqio.Task` or `seqio.Mixture`.
        feature_lengths: dictionary of ints.
        engine: the built `Engine` that has the model, whose replicas share each batch;
            None for one device.

    Attributes:
        model: the model.
        features: dictionary of `seqio.Feature`s, the task's.
        lengths: dictionary of ints, `feature_lengths`.
        one_row: bool, whether the model is a language model.
        row_length: int, the tokens that a language model reads.

    Raises:
        ValueError: the model writes no text, or the task lacks a feature.
    """

    def __init__(self, model, task, feature_lengths, engine=None):
        check_writes(model)
        self.model = model
        self._task = task
        self.features = features = task.output_features
        keep_eos = [name for name in features if keeps_eos(task, name)]
        batches = PairBatches(model, feature_lengths, keep_eos)
        self.lengths, self.one_row = batches.lengths, batches.one_row
        self.row_length = batches.row_length
        ids = tf.RaggedTensorSpec([None, None], tf.int32)
        self._batches = tf.function(batches, input_signature=[ids, ids])
        needed = {"targets"} if self.one_row else {"inputs", "targets"}
        if not needed <= features.keys():
            raise ValueError(
                f"{task.name} has the features {', '.join(features)}. Scoring needs "
                f"{' and '.join(sorted(needed))}."
            )
        engine = engine or engine_of(model)
        self._score = engine.compile(lambda batch: score(model, batch)[:3])

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
            batch_size: int, which the engine's replicas divide.

        Yields:
            float, int, bool as `remixer_tf.decoding.Scores` has them, and a bool,
            whether the model could not read the pair whole.

        Raises:
            ValueError: the replicas do not divide `batch_size`.
        """
        pairs = iter(pairs)
        while rows := list(itertools.islice(pairs, batch_size)):
            fill = [([], [])] * (batch_size - len(rows))  # of one shape, traced once
            inputs, targets = map(ragged, zip(*rows, *fill, strict=True))
            batch, kept, cut = self._batches(inputs, targets)
            if self.one_row:
                length = quarters(int(tf.reduce_max(kept)), self.row_length)
                batch = {name: x[:, :length] for name, x in batch.items()}
            results = (*self._score(batch), cut.numpy())
            results = [x[: len(rows)].tolist() for x in results]
            yield from zip(*results, strict=True)


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


def ragged(rows):
    """Lists of int as ragged int32 `[len(rows), (length)]`."""
    ids = np.fromiter(itertools.chain(*rows), np.int32)
    return tf.RaggedTensor.from_row_lengths(ids, [*map(len, rows)], validate=False)


def quarters(longest, length):
    """So many quarters of a length as hold the longest row, at least one: an int.

    A graph is then traced for four lengths, and short rows do not wait for the longest.
    """
    quarter = -(-length // 4)
    return min(length, quarter * max(1, -(-longest // quarter)))
