"""A language model's batches of any task: one row for inputs and targets."""

import seqio

from remixer_tf.errors import UserError


class LanguageModelFeatureConverter(seqio.LMFeatureConverter):
    """Inputs and targets in one row, with loss on the targets.

    Of a task with inputs it is `seqio.PrefixLMFeatureConverter`, of one of targets
    alone `seqio.LMFeatureConverter`: `feature_lengths` says which. It is what
    `DecoderOnly` reads unless a configuration names another. Under
    `{"inputs": 3, "targets": 3}` the example `{"inputs": [7, 1], "targets": [9, 1]}`
    becomes

        {"decoder_target_tokens": [7, 1, 9, 1, 0, 0],
         "decoder_input_tokens":  [0, 7, 1, 9, 1, 0],
         "decoder_loss_weights":  [0, 0, 1, 1, 0, 0],
         "decoder_causal_attention": [1, 1, 1, 0, 0, 0]}

    Args:
        options: of `seqio.FeatureConverter`, such as `pack`.
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


def check_reads_inputs(task, feature_lengths, feature_converter):
    """Raises a ValueError if a language model would not read the inputs of a task.

    Args:
        task: a `seqio.Task` or `seqio.Mixture`.
        feature_lengths: dictionary of ints.
        feature_converter: a `seqio.FeatureConverter` class. Under
            `seqio.LMFeatureConverter` inputs are left out on purpose.
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
