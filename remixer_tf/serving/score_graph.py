"""The likelihood that a trained model gives to texts, as a graph."""

import tensorflow as tf

from remixer_tf.decoding import score


class ScoreGraph(tf.Module):
    """Scores strings, or their ids, given others: see `remixer_tf.decoding.score`.

    What the model reads of them is the codec's affair.

    Args:
        model: a built and restored `EncoderDecoder` or `DecoderOnly`.
        codec: the `Codec` of the task, for the model's own batches.
        weights: the model's `StoredWeights`.
    """

    def __init__(self, model, codec, weights):
        super().__init__(name="score_graph")
        self.codec = codec
        self.weights = weights
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
            encode = self.codec.encode
            return self.score(encode("inputs", inputs), encode("targets", targets))

        return score_texts

    def score(self, inputs, targets):
        """Scores ragged ids, int32 `[batch, (length)]`, see `function`."""
        batch, _, trimmed = self.codec.pairs(inputs, targets)
        with self.weights.reading():
            scores = self._score(batch)
        return {
            "scores": scores.sums,
            "num_tokens": scores.num_tokens,
            "greedy": scores.greedy,
            "trimmed": trimmed,
            "token_scores": scores.log_probs,
            "tokens": batch["decoder_target_tokens"] * batch["decoder_loss_weights"],
        }
