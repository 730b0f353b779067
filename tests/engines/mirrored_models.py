"""Trains tiny models on one and on two logical CPU devices; prints JSON.

A process of its own, since logical devices are set before TensorFlow starts.
"""

import functools
import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf

from remixer_tf.engines.tensorflow.step import TrainStep
from remixer_tf.engines.tensorflow.strategy import get_strategy
from remixer_tf.layers import BaseRouter, SwitchRouter
from remixer_tf.models import DecoderOnly
from remixer_tf.objectives.losses import CrossEntropy
from remixer_tf.objectives.objective import Objective
from tests.models.tiny import (
    VOCAB_SIZE,
    read_by,
    tiny_batch,
    tiny_mixture,
    tiny_model,
)
from tests.training import toy

NUM_STEPS = 4


def remixer(dropout_rate=0.0):
    return tiny_model("remixer", dropout_rate=dropout_rate, num_layers=1)


def mixture(kind, router):
    """A group of tokens is a row: it is in one replica, whatever their number."""
    stack = tiny_mixture(kind, router=router, group_size=7)
    model = DecoderOnly(stack, VOCAB_SIZE, 8)
    model.build()
    return model


def computed_again():
    """A Remixer that keeps no activations of its blocks."""
    model = remixer(0.3)
    model.encoder.remat = model.decoder.remat = "full"
    return model


def make(strategy_name, make_model, **objective):
    """Returns a model's train step of a batch, and all variables."""
    keras.utils.set_random_seed(0)
    strategy = get_strategy(strategy_name)
    with strategy.scope():
        model = make_model()
        optimizer = keras.optimizers.AdamW(0.01, use_ema=True)
    objective = Objective(clip_norm=1.0, **objective)
    step = TrainStep(model, optimizer, strategy, objective)
    variables = [*model.variables, *optimizer.variables]
    return lambda batch: step(toy.stack([read_by(model, batch)])), variables


def train(step, variables, batches):
    """Returns the loss of each step, and the variables after them."""
    losses = []
    for batch in batches:
        sums = step(batch)
        losses.append(float(sums["loss"] / sums["weight"]))
    return losses, [variable.numpy() for variable in variables]


def differences():
    """Returns how far apart runs end that should, or should not, be equal."""
    batches = [tiny_batch(batch_size=4, seed=seed) for seed in range(NUM_STEPS)]

    def between_one_and_two(make_model, batches=batches):
        return _difference(
            *(train(*make(s, make_model), batches) for s in ("single", "mirrored"))
        )

    switch = functools.partial(SwitchRouter, jitter=0.0, balance_weight=1.0)
    step, variables = make("mirrored", functools.partial(remixer, 0.3))
    began = train(step, variables, batches[:2])
    in_parts = CrossEntropy(tokens_at_once=6)  # three positions of a replica's two rows
    little = make("mirrored", computed_again, loss_fn=in_parts)
    saved = [variable.numpy() for variable in variables]

    def go_on(batches):
        for variable, value in zip(variables, saved, strict=True):
            variable.assign(value)
        return train(step, variables, batches)

    went_on = train(step, variables, batches[2:])
    swapped = {key: np.roll(x, 2, axis=0) for key, x in batches[2].items()}
    return {
        "two devices, no dropout": between_one_and_two(remixer),
        "switch": between_one_and_two(lambda: mixture("switch", switch), batches[:2]),
        "base": between_one_and_two(lambda: mixture("base", BaseRouter), batches[:2]),
        "little memory": _difference(train(*little, batches[:2]), began),
        "restored": _difference(went_on, go_on(batches[2:])),
        # Each replica with the other's rows: with equal masks, the same loss.
        "masks": abs(went_on[0][0] - go_on([swapped])[0][0]),
    }


def _difference(one, two):
    """The largest, of losses and variables."""
    pairs = zip([one[0], *one[1]], [two[0], *two[1]], strict=True)
    return max(float(np.abs(np.subtract(a, b)).max()) for a, b in pairs)


if __name__ == "__main__":
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    print(json.dumps(differences()))
