"""Trains on one and on two logical CPU devices; prints what came out as JSON.

A process of its own, since logical devices are set before TensorFlow starts.
"""

import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import tensorflow as tf

from remixer_tf.layers import Dropout
from remixer_tf.optimizers import Adafactor
from remixer_tf.training.strategy import get_strategy
from remixer_tf.training.train_step import TrainStep, summarize
from tests.training import toy

NUM_STEPS = 20


def run(strategy_name, optimizer, steps_per_call, jit_compile):
    """Returns per-call means and all final weights, per replica."""
    keras.utils.set_random_seed(0)
    strategy = get_strategy(strategy_name)
    with strategy.scope():
        model = toy.ToyModel()
        model.build()
        optimizer = optimizer()
    train_step = TrainStep(
        model,
        optimizer,
        strategy,
        z_loss=1e-3,
        clip_norm=0.3,
        micro_batches=2,
        jit_compile=jit_compile,
    )
    batches = toy.make_batches(NUM_STEPS)
    calls = [
        summarize(train_step(toy.stack(batches[i : i + steps_per_call])))
        for i in range(0, NUM_STEPS, steps_per_call)
    ]
    weights = [
        [replica.numpy().tolist() for replica in strategy.experimental_local_results(v)]
        for v in (variable.value for variable in model.trainable_variables)
    ]
    return {
        "replicas": strategy.num_replicas_in_sync,
        "calls": calls,
        "weights": weights,
    }


def dropout_masks():
    """Returns what each replica kept, in two draws, and the states after them."""
    strategy = get_strategy("mirrored")
    with strategy.scope():
        layer = Dropout(0.5, name="dropout")
        layer.build()

    @tf.function
    def draw():
        return strategy.run(lambda: layer(tf.ones((64,)), training=True))

    draws = [
        [r.numpy().tolist() for r in strategy.experimental_local_results(draw())]
        for _ in range(2)
    ]
    states = strategy.experimental_local_results(layer.seed_generator.state.value)
    return {"draws": draws, "states": [state.numpy().tolist() for state in states]}


def main():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    optimizers = {
        "adafactor": lambda: Adafactor(learning_rate=0.1),
        "adamw": lambda: keras.optimizers.AdamW(learning_rate=0.01),
    }
    result = {
        f"{strategy} {name} {steps} {jit}": run(strategy, optimizers[name], steps, jit)
        for strategy, name, steps, jit in [
            ("single", "adafactor", 1, False),
            ("single", "adamw", 4, False),
            ("mirrored", "adafactor", 1, False),
            ("mirrored", "adafactor", 1, True),
            ("mirrored", "adamw", 4, False),
            ("mirrored", "adamw", 4, True),
        ]
    }
    result["dropout"] = dropout_masks()
    try:
        three = {k: v[:3] for k, v in toy.make_batches(1)[0].items()}
        model = toy.ToyModel()
        model.build()
        optimizer = keras.optimizers.SGD()
        TrainStep(model, optimizer, get_strategy("mirrored"))(toy.stack([three]))
    except ValueError as error:
        result["indivisible"] = str(error)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
