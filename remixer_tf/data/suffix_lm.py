"""Language modelling whose loss leaves out the beginning of each row."""

import seqio
import tensorflow as tf

from remixer_tf.errors import UserError
from remixer_tf.layers.checks import check_numbers
from remixer_tf.layers.sparse_gate import DECIDING_SHARE, count_first


class SuffixLMFeatureConverter(seqio.LMFeatureConverter):
    """A language model's batches, without loss on the first positions of a row.

    As `seqio.LMFeatureConverter`, but `decoder_loss_weights` is 0 at the positions
    p < ceil(first_share * T) of a row of T = `feature_lengths["targets"]` positions,
    padding counted, whatever examples are packed into it. Under `first_share=0.2` and
    `{"targets": 6}` the example `{"targets": [3, 9, 4, 1]}` becomes

        {"decoder_target_tokens": [3, 9, 4, 1, 0, 0],
         "decoder_input_tokens":  [0, 3, 9, 4, 0, 0],
         "decoder_loss_weights":  [0, 0, 1, 1, 0, 0]}

    A model that routes by the first tokens predicts the others alone, and models are
    compared on what all of them predict (sMLP, "partial prediction": the first 20%).

    Args:
        first_share: float in [0, 1).
        pack: bool, see seqio.

    Raises:
        ValueError: first_share is out of range.
    """

    def __init__(self, first_share=DECIDING_SHARE, **kwargs):
        super().__init__(**kwargs)
        check_numbers(first_share=first_share)
        if first_share >= 1:
            raise UserError(
                "first_share must be in [0, 1): nothing would be left to predict. "
                f"Received: first_share={first_share}"
            )
        self._first_share = first_share

    def _convert_example(self, features):
        example = dict(super()._convert_example(features))
        weights = example["decoder_loss_weights"]
        first = count_first(weights.shape[0], self._first_share)
        predicted = tf.range(weights.shape[0]) >= first
        example["decoder_loss_weights"] = weights * tf.cast(predicted, weights.dtype)
        return example
