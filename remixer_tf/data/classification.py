"""Classification of texts and pairs of texts."""

import seqio
import tensorflow as tf

from remixer_tf.data.failures import fail_unless
from remixer_tf.data.vocabularies import special_ids
from remixer_tf.errors import UserError

INT32 = seqio.FeatureConverter.FeatureSpec(dtype=tf.int32)


class ClassNames(seqio.PassThroughVocabulary):
    """The classes of a task: each of the `names`, a list of str, is one id, from 0.

    Metrics and predictions.jsonl then have names as targets and predictions.
    """

    def __init__(self, names):
        super().__init__(len(names))
        self.names = list(names)

    def _encode(self, s):
        return [self.names.index(s)]

    def _decode(self, ids):
        return " ".join(self.names[int(i)] for i in ids)

    def _encode_tf(self, s):
        found = tf.cast(tf.equal(self.names, s), tf.int32)
        message = tf.strings.join([f"A class is one of {self.names}. Received: ", s])
        with tf.control_dependencies([fail_unless(tf.reduce_sum(found) == 1, message)]):
            return tf.argmax(found, output_type=tf.int32)[None]

    def _decode_tf(self, ids):
        return tf.strings.reduce_join(tf.gather(self.names, ids), -1, separator=" ")

    def __eq__(self, other):
        return isinstance(other, ClassNames) and self.names == other.names

    def __str__(self):
        return f"ClassNames({self.names})"


def join_texts(dataset, output_features, sequence_length=None):
    """A preprocessor: BERT's input of one or two texts.

        [CLS] inputs [SEP]                    token types 0 ... 0
        [CLS] inputs [SEP] inputs_b [SEP]     token types 0 ... 0 1 ... 1

    It replaces "inputs" and perhaps "inputs_b", int32 `[n]`, by "inputs" and
    "token_types"; other features stay. If they are too long, the longer text loses
    tokens at its end; without lengths texts stay whole. A vocabulary without ids for
    [CLS] and [SEP] is a ValueError.
    """
    special = special_ids(output_features["inputs"].vocabulary)
    length = sequence_length["inputs"] if sequence_length else tf.int32.max

    @seqio.map_over_dataset
    def join(example):
        example = dict(example)
        texts = example["inputs"], example.pop("inputs_b", None)
        inputs, types = join_ids(*texts, length, special)
        return {**example, "inputs": inputs, "token_types": types}

    return join(dataset)


def join_ids(first, second, length, special):
    """Joins the ids of one text (`second` None) or two, see `join_texts`.

    Returns ids and token types, int32 `[m]`, m at most `length`. `special` are the
    `SpecialIds`.
    """
    if second is None:
        parts = [[special.cls], first[: length - 2], [special.sep]]
        second = tf.zeros([0], tf.int32)
    else:
        room = length - 3
        kept = tf.maximum(room // 2, room - tf.size(first))
        second = second[:kept]
        first = first[: room - tf.size(second)]
        second = tf.concat([second, [special.sep]], axis=0)
        parts = [[special.cls], first, [special.sep], second]
    inputs = tf.concat(parts, axis=0)
    types = tf.range(tf.size(inputs)) >= tf.size(inputs) - tf.size(second)
    return inputs, tf.cast(types, tf.int32)


class ClassifierFeatureConverter(seqio.FeatureConverter):
    """Batches for an `EncoderOnly` with a `ClassificationHead`.

    Under `{"inputs": 7, "token_types": 7, "targets": 1}`,

        {"inputs": [98, 7, 8, 97, 9, 97], "token_types": [0, 0, 0, 0, 1, 1],
         "targets": [2]}

    becomes

        {"encoder_input_tokens": [98, 7, 8, 97, 9, 97, 0],
         "encoder_token_types": [0, 0, 0, 0, 1, 1, 0],
         "labels": [2],
         "label_weights": [1]}
    """

    # Model features, and the task features that they are made of.
    SOURCES = {
        "encoder_input_tokens": "inputs",
        "encoder_token_types": "token_types",
        "labels": "targets",
        "label_weights": "targets",
    }
    TASK_FEATURES = dict.fromkeys(SOURCES.values(), INT32)
    MODEL_FEATURES = dict.fromkeys(SOURCES, INT32)
    PACKING_FEATURE_DTYPES = None

    def _convert_features(self, ds, task_feature_lengths):
        if self.pack:
            raise UserError(
                "A row of a classifier is one example. Received: pack=True. Set "
                "length_buckets instead."
            )

        def convert(features):
            converted = {x: features[name] for x, name in self.SOURCES.items()}
            weights = tf.ones_like(features["targets"])
            return converted | {"label_weights": weights}

        ds = self._pack_or_pad(ds, task_feature_lengths)
        return ds.map(convert, num_parallel_calls=tf.data.AUTOTUNE)

    def get_model_feature_lengths(self, task_feature_lengths):
        return {x: task_feature_lengths[name] for x, name in self.SOURCES.items()}
