"""The likelihood that a trained model gives to texts, as a graph."""

import tensorflow as tf

from remixer_tf.decoding import score
from remixer_tf.models import DecoderOnly
from remixer_tf.serving.tokenizers import pad


class ScoreGraph(tf.Module):
    """Scores strings, or their ids, given others: see `remixer_tf.decoding.score`.

    An encoder-decoder reads inputs of up to `feature_lengths["inputs"]` tokens and
    targets of up to `feature_lengths["targets"]`; longer ones are cut as in training. A
    language model reads both in one row, of up to the sum of `feature_lengths`; longer
    inputs lose their beginning, which is furthest from the targets.

    Args:
        model: a built and restored `EncoderDecoder` or `DecoderOnly`.
        feature_lengths: dictionary of ints.
        tokenizers: `Tokenizers` of the task.
        weights: the model's `StoredWeights`.
    """

    def __init__(self, model, feature_lengths, tokenizers, weights):
        super().__init__(name="score_graph")
        self.tokenizers = tokenizers
        self.weights = weights
        self._one_row = isinstance(model, DecoderOnly)
        self._input_length = feature_lengths.get("inputs", 0)
        self._target_length = feature_lengths["targets"]
        if self._one_row:
            self._row_length = sum(feature_lengths.values())
        self._score = lambda batch: score(model, batch)

    def function(self):
        """Returns the graph of strings, which is traced when it is called or saved.

        Returns:
            a `tf.function` of `inputs` and `targets`, strings `[batch]`. It returns a
            dictionary of `scores`, float32 `[batch]`, the log-likelihood of the targets
            given the inputs; `num_tokens`, int32 `[batch]`, how many tokens these are;
            `greedy`, bool `[batch]`, see `Scores`; `trimmed`, bool `[batch]`, whether
            the model could not read both whole; and `token_scores`, float32
            `[batch, length]`, of each target token, `tokens`, int32 of the same shape:
            both are 0 where a row has none.
        """
        strings = [
            tf.TensorSpec([None], tf.string, name=n) for n in ("inputs", "targets")
        ]

        @tf.function(input_signature=strings, autograph=False)
        def score_texts(inputs, targets):
            encode = self.tokenizers.encode
            return self.score(encode("inputs", inputs), encode("targets", targets))

        return score_texts

    def score(self, inputs, targets):
        """Scores ragged ids, int32 `[batch, (length)]`, see `function`."""
        whole = inputs.row_lengths() + targets.row_lengths()
        if self._one_row:
            targets = targets[:, : self._row_length]
            rows = tf.concat([inputs, targets], axis=1)[:, -self._row_length :]
            starts = rows.row_lengths() - targets.row_lengths()
            kept = rows.row_lengths()
            tokens, batch = pad(rows, self._row_length), {}
        else:
            inputs = self.tokenizers.cut("inputs", inputs, self._input_length)
            targets = self.tokenizers.cut("targets", targets, self._target_length)
            starts = tf.zeros_like(whole)
            kept = inputs.row_lengths() + targets.row_lengths()
            tokens = pad(targets, self._target_length)
            batch = {"encoder_input_tokens": pad(inputs, self._input_length)}
        places = tf.range(tokens.shape[1], dtype=tf.int64)
        counts = tf.cast((places >= starts[:, None]) & (tokens > 0), tf.int32)
        with self.weights.reading():
            scores = self._score(
                {
                    **batch,
                    "decoder_input_tokens": tf.pad(tokens, [[0, 0], [1, 0]])[:, :-1],
                    "decoder_target_tokens": tokens,
                    "decoder_loss_weights": counts,
                }
            )
        return {
            "scores": scores.sums,
            "num_tokens": scores.num_tokens,
            "greedy": scores.greedy,
            "trimmed": kept < whole,
            "token_scores": scores.log_probs,
            "tokens": tokens * counts,
        }
