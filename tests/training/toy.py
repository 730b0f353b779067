"""A small model and a small task for the trainer's tests."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from remixer_tf.checkpoints.writing import Checkpoints
from remixer_tf.engines.backend_engine import backend_engine
from remixer_tf.layers import Dropout, sow
from remixer_tf.objectives.objective import Objective
from remixer_tf.training.loop import train
from remixer_tf.training.settings import Checkpointing, Launch, Schedule

VOCAB_SIZE = 16
BAD_TOKEN = 14  # whose gradient `Overflowing` has not


class ToyModel(keras.Model):
    """Predicts each target from the previous one and the mean of the inputs."""

    def __init__(self, width=8, dropout_rate=0.0, name="toy"):
        super().__init__(name=name)
        self.width = width
        self.embedding = keras.layers.Embedding(VOCAB_SIZE, width, name="embedding")
        self.dropout = Dropout(dropout_rate, name="dropout")
        self.logits = keras.layers.Dense(VOCAB_SIZE, dtype="float32", name="logits")

    def build(self, input_shape=None):
        self.embedding.build((None, None))
        self.dropout.build((None, None, self.width))
        self.logits.build((None, None, self.width))
        self.built = True

    def call(self, batch, training=False):
        x = self.embedding(batch["decoder_input_tokens"])
        encoded = self.embedding(batch["encoder_input_tokens"])
        x = x + ops.mean(encoded, axis=1, keepdims=True)
        return self.logits(self.dropout(x, training=training))


class Overflowing(ToyModel):
    """Finite logits whose gradient is not where the first input is `BAD_TOKEN`."""

    def call(self, batch, training=False):
        logits = super().call(batch, training=training)
        bad = ops.equal(batch["encoder_input_tokens"][0, 0], BAD_TOKEN)
        # The slope of a root at 0 is infinite.
        x = ops.where(bad, 0.0, 1.0) * ops.mean(ops.square(logits))
        return logits + ops.where(bad, ops.sqrt(x), 0.0)


class ReportingModel(ToyModel):
    """Reports losses with a name and without, a regularizer, and two statistics."""

    def __init__(self):
        super().__init__()
        self.logits = keras.layers.Dense(
            VOCAB_SIZE,
            dtype="float32",
            kernel_regularizer=keras.regularizers.L2(0.02),
            name="logits",
        )

    def call(self, batch, training=False):
        logits = super().call(batch, training=training)
        sow(self.logits, "losses", "spread", ops.mean(ops.square(logits)))
        self.add_loss(0.5 * ops.mean(ops.square(logits[..., 0])))
        tokens = batch["encoder_input_tokens"]
        load = ops.mean(ops.one_hot(tokens // 4, VOCAB_SIZE // 4), axis=(0, 1))
        sow(self.logits, "statistics", "load", load)  # [4]
        sow(self.logits, "statistics", "mean", ops.mean(ops.cast(tokens, "float32")))
        return logits


def statistics(batches):
    """The statistics of `ReportingModel`, by NumPy: {name: mean}."""
    tokens = np.stack([batch["encoder_input_tokens"] for batch in batches])
    load = np.bincount(tokens.ravel() // 4, minlength=VOCAB_SIZE // 4) / tokens.size
    name = "statistics/toy/logits"
    return {f"{name}/load": load, f"{name}/mean": tokens.mean()}


class MaskModel(ToyModel):
    """Reports a number that tells its dropout masks apart, and its square."""

    def __init__(self):
        super().__init__(dropout_rate=0.5)

    def call(self, batch, training=False):
        mask = self.dropout(ops.ones((64,)), training=training)
        number = ops.mean(mask * ops.arange(64, dtype="float32"))
        sow(self, "losses", "number", number)
        sow(self, "losses", "square", ops.square(number))
        return super().call(batch, training=training)


def make_batches(num_batches, batch_size=8, length=6, seed=0):
    """Returns batches [batch, length] whose rows differ much in real tokens.

    The target is the input reversed; the first half of the rows is long, the second
    short, so that replicas get uneven numbers of tokens.
    """
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(num_batches):
        lengths = np.where(
            np.arange(batch_size) < batch_size // 2,
            rng.integers(length - 1, length + 1, batch_size),
            rng.integers(1, 3, batch_size),
        )
        weights = (np.arange(length) < lengths[:, None]).astype("int32")
        inputs = rng.integers(2, VOCAB_SIZE, (batch_size, length)).astype("int32")
        targets = inputs[:, ::-1] * weights
        shifted = np.pad(targets, ((0, 0), (1, 0)))[:, :-1]
        batches.append(
            {
                "encoder_input_tokens": inputs,
                "decoder_input_tokens": shifted,
                "decoder_target_tokens": targets,
                "decoder_loss_weights": weights,
            }
        )
    return batches


def stack(batches):
    """Returns one superbatch [steps, batch, length] of tensors."""
    return {
        key: tf.constant(np.stack([batch[key] for batch in batches]))
        for key in batches[0]
    }


def make_checkpoints(model_dir, model, optimizer, iterator, host=None, **options):
    """Returns the `Checkpoints` of a model and an optimizer that are built."""
    engine = backend_engine()
    engine.model, engine.optimizer = model, optimizer
    engine.host = host or engine.host
    return Checkpoints(model_dir, engine, iterator, **options)


def train_toy(run, model_dir, train_steps, **options):
    """Calls `train`, with each option in the settings that have its name."""

    def settings(kind, **given):
        names = [f.name for f in dataclasses.fields(kind) if f.name in options]
        return kind(**given, **{name: options.pop(name) for name in names})

    return train(
        run,
        settings(Launch, model_dir=str(model_dir)),
        options.pop("dataset", toy_dataset),
        options.pop("optimizer", lambda: keras.optimizers.Adam(0.01)),
        settings(Schedule, train_steps=train_steps),
        settings(Checkpointing),
        settings(Objective),
        **options,
    )


def toy_dataset(seed=0, steps_per_call=1, batch_size=8, shard_info=None):
    """An endless, shuffled dataset of superbatches."""
    rows = make_batches(1, batch_size=64)[0]
    data = tf.data.Dataset.from_tensor_slices(rows).repeat().shuffle(64, seed=seed)
    data = data.batch(batch_size, drop_remainder=True)
    return data.batch(steps_per_call, drop_remainder=True)
