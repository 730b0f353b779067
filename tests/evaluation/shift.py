"""A model whose answers are known, and a task to evaluate it on."""

import functools

import keras
from keras import ops

from remixer_tf.checkpoints.writing import write_weights
from remixer_tf.decoding import Decoded
from remixer_tf.engines.backend_engine import backend_engine
from remixer_tf.engines.tensorflow.engine import TensorFlowEngine
from remixer_tf.evaluation.decoded import DecodedEvaluation
from tests.data.toy_tasks import toy_task

LENGTHS = {"inputs": 8, "targets": 12}
DEV = [("abc", "bcd"), ("h", "i"), ("hello", "hello"), ("abab", "bcbc"), ("z", "z")]


class Shift(keras.Model):
    """Answers with the input's letters moved on by `shift`."""

    def build(self, input_shape=None):
        self.shift = self.add_weight(shape=(), initializer="ones", name="shift")
        self.built = True


def make_shift():
    return Shift(name="shift_model")


def built_shift(shift=1.0):
    model = make_shift()
    model.build()
    model.shift.assign(shift)
    return model


def engine_of(model):
    """An engine on one device that has a model."""
    engine = backend_engine(functools.partial(TensorFlowEngine, jit_compile=False))
    engine.model = model
    return engine


def shift_engine(shift=1.0):
    return engine_of(built_shift(shift))


def shift_decode(model, batch, max_length, by=0):
    tokens = batch["encoder_input_tokens"]
    moved = tokens + ops.cast(model.shift, "int32") + by
    moved = ops.where(tokens > 1, moved, tokens)
    moved = ops.pad(moved, [(0, 0), (0, max_length - tokens.shape[1])])
    return Decoded(moved, ops.cast(tokens[:, 0], "float32"))


def save(model_dir, step, shift=1.0):
    """Writes a checkpoint of the model."""
    write_weights(str(model_dir), built_shift(shift), step)


def decoded(task=None, **kwargs):
    """A `DecodedEvaluation` of the task, by default of its only split, dev."""
    kwargs = {
        "feature_lengths": LENGTHS,
        "batch_size": 4,
        "decode_fn": shift_decode,
        **kwargs,
    }
    return DecodedEvaluation(task or toy_task({"dev": DEV}), **kwargs)
