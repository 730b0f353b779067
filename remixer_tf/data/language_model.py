"""Batches for language models: one row for inputs and targets."""

import seqio
import tensorflow as tf

from remixer_tf.errors import UserError, check_range
from remixer_tf.layers.sparse_gate import DECIDING_SHARE, count_first


class LanguageModelFeatureConverter(seqio.LMFeatureConverter):
    """Inputs and targets in one row, with loss on the targets.

    It acts as `seqio.PrefixLMFeatureConverter` if `feature_lengths` has inputs, else as
    `seqio.LMFeatureConverter`, and takes their options. `DecoderOnly` reads it by
    default. Under `{"inputs": 3, "targets": 3}` the example
    `{"inputs": [7, 1], "targets": [9, 1]}` becomes

        {"decoder_target_tokens": [7, 1, 9, 1, 0, 0],
         "decoder_input_tokens":  [0, 7, 1, 9, 1, 0],
         "decoder_loss_weights":  [0, 0, 1, 1, 0, 0],
         "decoder_causal_attention": [1, 1, 1, 0, 0, 0]}
    """

    def __init__(self, **options):
        super().__init__(**options)
        self._options = options

    def __call__(self, ds, task_feature_lengths):
        return self._converter(task_feature_lengths)(ds, task_feature_lengths)

    def get_model_feature_lengths(self, task_feature_lengths):
        """See `seqio.FeatureConverter`."""
        converter = self._converter(task_feature_lengths)
        return converter.get_model_feature_lengths(task_feature_lengths)

    def _converter(self, lengths):
        if "inputs" in lengths:
            return seqio.PrefixLMFeatureConverter(**self._options)
        return seqio.LMFeatureConverter(**self._options)


class SuffixLMFeatureConverter(seqio.LMFeatureConverter):
    """`seqio.LMFeatureConverter` without loss on the first positions of a row.

    `decoder_loss_weights` is 0 at the positions p < ceil(first_share * T) of a row of
    T = `feature_lengths["targets"]` positions. Under `first_share=0.2` and
    `{"targets": 6}` the example `{"targets": [3, 9, 4, 1]}` becomes

        {"decoder_target_tokens": [3, 9, 4, 1, 0, 0],
         "decoder_input_tokens":  [0, 3, 9, 4, 0, 0],
         "decoder_loss_weights":  [0, 0, 1, 1, 0, 0]}

    A model that routes by the first tokens predicts only the others, and models are
    compared on the positions that all predict (sMLP, "partial prediction": 20%).
    `first_share` is a float in [0, 1), else a ValueError.
    """

    def __init__(self, first_share=DECIDING_SHARE, **kwargs):
        super().__init__(**kwargs)
        expected = "a number in [0, 1), so that something is left to predict"
        check_range("first_share", first_share, expected, lambda x: 0 <= x < 1)
        self._first_share = first_share

    def _convert_example(self, features):
        example = dict(super()._convert_example(features))
        weights = example["decoder_loss_weights"]
        first = count_first(weights.shape[0], self._first_share)
        predicted = tf.range(weights.shape[0]) >= first
        example["decoder_loss_weights"] = weights * tf.cast(predicted, weights.dtype)
        return example


def check_reads_inputs(task, feature_lengths, feature_converter):
    """Raises a ValueError if a language model would not read the inputs of a task.

    `seqio.LMFeatureConverter` leaves them out on purpose.
    """
    converter = feature_converter(pack=False)
    reads_both = isinstance(converter, LanguageModelFeatureConverter)
    if reads_both and "inputs" in {*task.output_features} - {*feature_lengths}:
        raise UserError(
            f"{task.name} has inputs, and feature_lengths has no length for them: a "
            "language model would read the targets alone. Set FEATURE_LENGTHS = "
            "{'inputs': N, 'targets': M}, or feature_converter = @LMFeatureConverter "
            f"to leave them out. Received: feature_lengths={dict(feature_lengths)}"
        )
