"""Parts of a user's own, which a gin file names: see docs/guides/own_parts.md."""

import gin
import keras
import seqio
import tensorflow as tf
from keras import ops

from remixer_tf.data.vocabularies import byte_vocabulary
from remixer_tf.decoding import Decoded
from remixer_tf.layers import Sublayer


@gin.register
class Scale(Sublayer):
    """A layer: each channel, times a number that is learned."""

    def __init__(self, initial=1.0, **kwargs):
        super().__init__(**kwargs)
        self.initial = initial

    def build(self, input_shape):
        constant = keras.initializers.Constant(self.initial)
        self.scale = self.add_weight(
            name="scale", shape=input_shape[-1:], initializer=constant
        )

    def call(self, x, context, training=False):
        return x * self.scale


@gin.register
class Halving(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule: half the learning rate after every `period` steps."""

    def __init__(self, learning_rate, period=1000):
        self.learning_rate = learning_rate
        self.period = period

    def __call__(self, step):
        return self.learning_rate * 0.5 ** ops.floor(step / self.period)


@gin.register
def copy_input(model, batch, max_length, leave_out=0):
    """A decoding function: says what it reads, cut short by some tokens."""
    tokens = batch["encoder_input_tokens"][:, : max_length - leave_out]
    tokens = ops.pad(tokens, [(0, 0), (0, max_length - tokens.shape[1])])
    return Decoded(tokens, ops.zeros_like(tokens[:, 0], dtype="float32"))


def same_length(targets, predictions):
    """A metric: the share of answers that are as long as their targets, in percent."""
    pairs = zip(targets, predictions, strict=True)
    same = sum(len(target) == len(prediction) for target, prediction in pairs)
    return {"same_length": 100 * same / len(targets)}


seqio.TaskRegistry.add(  # a task
    "my_copies",
    source=seqio.FunctionDataSource(
        lambda split, shuffle_files, seed=None: tf.data.Dataset.from_tensor_slices(
            {"inputs": ["a", "bc", "def"], "targets": ["a", "bc", "def"]}
        ),
        splits=["train", "validation"],
    ),
    preprocessors=[seqio.preprocessors.tokenize, seqio.preprocessors.append_eos],
    output_features={
        "inputs": seqio.Feature(byte_vocabulary()),
        "targets": seqio.Feature(byte_vocabulary()),
    },
    metric_fns=[same_length],
)
