"""Masked language modelling: the masking, and batches of what is masked.

The masking is a preprocessor. There seqio gives each example a seed, drawn from the
run's; in a feature converter it does not. It repeats the data before it preprocesses,
so every epoch has new seeds. Their place in the stream is part of the iterator's
checkpoint, so a resumed run masks the same tokens.
"""

import seqio
import tensorflow as tf

from remixer_tf.data.classification import INT32
from remixer_tf.data.vocabularies import special_ids
from remixer_tf.errors import UserError

MASKED_PERCENT = 15


def concat_and_split(dataset, sequence_length, *, feature="targets", room=0):
    """A preprocessor: joins documents and cuts them to the feature's length.

    Dictionaries with int32 `[n]` under `feature` become `{feature: int32 [length -
    room]}`; the last is shorter. `room` is kept for ids put before the tokens.
    """
    tokens = dataset.map(lambda example: example[feature])
    pieces = tokens.rebatch(sequence_length[feature] - room)
    return pieces.map(lambda piece: {feature: piece})


def mask_tokens(dataset, sequence_length, output_features):
    """A preprocessor: BERT's masking of 15% of the tokens (section 3.1, Task 1).

    Special tokens are padding, EOS, unknown and the vocabulary's extra ids. From the n
    others floor(0.15 n) are chosen, at least one. 80% of these become the mask token,
    10% a random token, 10% stay. [CLS] comes first, and both features are cut at the
    length of the inputs. If [CLS] is 98 and the mask 99, one example could become

        {"targets": [7, 8, 9, 10, 11, 12, 13]}
        {"inputs":  [98, 7, 8, 99, 10, 11, 12, 13],
         "targets": [-1, -1, -1, 9, -1, -1, -1, -1]}

    -1, since 0 is padding to seqio's packing. A vocabulary without ids for mask and
    [CLS] is a ValueError.
    """
    special = special_ids(output_features["inputs"].vocabulary)

    @seqio.map_over_dataset(num_seeds=3)
    def mask(example, seeds):
        tokens = example["targets"][: sequence_length["inputs"] - 1]
        length = tf.shape(tokens)
        ordinary = (tokens >= special.first_ordinary) & (tokens < special.end_ordinary)
        count = tf.math.count_nonzero(ordinary, dtype=tf.int32)
        chosen_count = tf.minimum(count, tf.maximum(count * MASKED_PERCENT // 100, 1))
        order = tf.random.stateless_uniform(length, seeds[0])
        order = tf.argsort(tf.where(ordinary, order, 2.0))  # special ids come last
        chosen = tf.argsort(order) < chosen_count
        fate = tf.random.stateless_uniform(length, seeds[1])
        ids = special.first_ordinary, special.end_ordinary
        random = tf.random.stateless_uniform(length, seeds[2], *ids, dtype=tf.int32)
        corrupt = tf.where(fate < 0.8, special.mask, random)
        inputs = tf.where(chosen & (fate < 0.9), corrupt, tokens)
        targets = tf.where(chosen, tokens, -1)
        return {
            "inputs": tf.concat([[special.cls], inputs], axis=0),
            "targets": tf.concat([[-1], targets], axis=0),
        }

    return mask(dataset)


class MaskedLMFeatureConverter(seqio.FeatureConverter):
    """Batches of `mask_tokens` for an `EncoderOnly` with a `MaskedLMHead`.

    The number of predictions is static, floor(0.15 length), 76 at 512: the head
    computes no other logits. An example of length 14:

        {"inputs":  [98, 7, 8, 99, 10, 11, 12, 99, 14, 15, 16, 17, 18, 19],
         "targets": [-1, -1, -1, 9, -1, -1, -1, 13, -1, -1, -1, -1, -1, -1]}

        {"encoder_input_tokens": [98, 7, 8, 99, 10, 11, 12, 99, 14, ...],
         "masked_positions": [3, 7],
         "encoder_target_tokens": [9, 13],
         "encoder_loss_weights": [1, 1]}

    If fewer tokens are masked, positions, targets and weights end in 0. Packed examples
    also have `encoder_{segment_ids,positions}`. A row of many tiny examples, each with
    at least one prediction, loses the predictions over the number.
    """

    TASK_FEATURES = dict.fromkeys(("inputs", "targets"), INT32)
    MODEL_FEATURES = {
        "encoder_input_tokens": INT32,
        "masked_positions": INT32,
        "encoder_target_tokens": INT32,
        "encoder_loss_weights": INT32,
    }
    PACKING_FEATURE_DTYPES = {
        "encoder_segment_ids": tf.int32,
        "encoder_positions": tf.int32,
    }

    def _convert_features(self, ds, task_feature_lengths):
        number = self._predictions(task_feature_lengths)

        def convert(features):
            targets = features["targets"]
            positions = tf.cast(tf.where(targets > 0)[:number, 0], tf.int32)
            missing = [[0, number - tf.size(positions)]]

            def fill(values):
                return tf.ensure_shape(tf.pad(values, missing), [number])

            converted = {
                "encoder_input_tokens": features["inputs"],
                "masked_positions": fill(positions),
                "encoder_target_tokens": fill(tf.gather(targets, positions)),
                "encoder_loss_weights": fill(tf.ones_like(positions)),
            }
            if self.pack:
                converted["encoder_segment_ids"] = features["inputs_segment_ids"]
                converted["encoder_positions"] = features["inputs_positions"]
            return converted

        ds = self._pack_or_pad(ds, task_feature_lengths)
        return ds.map(convert, num_parallel_calls=tf.data.AUTOTUNE)

    def get_model_feature_lengths(self, task_feature_lengths):
        number = self._predictions(task_feature_lengths)
        lengths = dict.fromkeys(self.MODEL_FEATURES, number)
        names = ["encoder_input_tokens"]
        names += self.PACKING_FEATURE_DTYPES if self.pack else ()
        return lengths | dict.fromkeys(names, task_feature_lengths["inputs"])

    @staticmethod
    def _predictions(lengths):
        if lengths["inputs"] != lengths["targets"]:
            raise UserError(
                "Inputs and targets of masked language modelling have one length. "
                f"Received: {dict(lengths)}."
            )
        return max(lengths["inputs"] * MASKED_PERCENT // 100, 1)
