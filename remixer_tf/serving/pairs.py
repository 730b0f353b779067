"""Pairs of inputs and targets as a model reads them to score the targets."""

import tensorflow as tf

from remixer_tf.models import DecoderOnly
from remixer_tf.serving.tokenizers import cut, pad


class PairBatches:
    """Batches of pairs of ids, for `remixer_tf.decoding.score`.

    An encoder-decoder reads inputs of up to `feature_lengths["inputs"]` tokens and
    targets of up to `feature_lengths["targets"]`; longer ones are cut as in training. A
    language model reads both in one row, of up to the sum of `feature_lengths`; longer
    inputs lose their beginning, which is furthest from the targets.

    Args:
        model: an `EncoderDecoder` or `DecoderOnly`.
        feature_lengths: dictionary of ints.
        keep_eos: names of the features that keep their EOS when they are cut.

    Attributes:
        lengths: dictionary of ints, `feature_lengths`.
        one_row: bool, whether the model is a language model.
        row_length: int, the tokens that a language model reads.
    """

    def __init__(self, model, feature_lengths, keep_eos):
        self.lengths = dict(feature_lengths)
        self.one_row = isinstance(model, DecoderOnly)
        self.row_length = sum(self.lengths.values())
        self._keep_eos = tuple(keep_eos)

    def __call__(self, inputs, targets):
        """Makes a batch, in a graph or eagerly.

        Args:
            inputs, targets: ragged int32 `[batch, (length)]`.

        Returns:
            the batch, a dictionary of int32 `[batch, length]`; int64 `[batch]`, how
            many ids of each pair are in it; bool `[batch]`, whether these are not all.
        """
        whole = inputs.row_lengths() + targets.row_lengths()
        if self.one_row:
            targets = targets[:, : self.row_length]
            rows = tf.concat([inputs, targets], axis=1)[:, -self.row_length :]
            kept = rows.row_lengths()
            starts = kept - targets.row_lengths()
            batch, tokens = {}, pad(rows, self.row_length)
        else:
            inputs, targets = self._cut("inputs", inputs), self._cut("targets", targets)
            kept = inputs.row_lengths() + targets.row_lengths()
            starts = tf.zeros_like(kept)
            batch = {"encoder_input_tokens": pad(inputs, self.lengths["inputs"])}
            tokens = pad(targets, self.lengths["targets"])
        places = tf.range(tokens.shape[1], dtype=tf.int64)
        is_target = (places >= starts[:, None]) & (tokens > 0)
        batch |= {
            "decoder_input_tokens": tf.pad(tokens, [[0, 0], [1, 0]])[:, :-1],
            "decoder_target_tokens": tokens,
            "decoder_loss_weights": tf.cast(is_target, tf.int32),
        }
        return batch, kept, kept < whole

    def _cut(self, name, ids):
        return cut(ids, self.lengths[name], name in self._keep_eos)
