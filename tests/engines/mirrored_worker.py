"""Trains on one and on two logical CPU devices; prints what came out as JSON.

A process of its own, since logical devices are set before TensorFlow starts.
"""

import functools
import json
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf

from remixer_tf.engines.tensorflow.engine import TensorFlowEngine
from remixer_tf.engines.tensorflow.step import TrainStep
from remixer_tf.engines.tensorflow.strategy import get_strategy, split_rows
from remixer_tf.layers import Dropout
from remixer_tf.layers.dropout import replica
from remixer_tf.objectives.losses import CrossEntropy
from remixer_tf.objectives.objective import Objective
from remixer_tf.objectives.summaries import summarize_steps
from remixer_tf.optimizers import Adafactor
from remixer_tf.serving.text_scorer import TextScorer
from remixer_tf.serving.text_to_text import TextToText
from tests.data.toy_tasks import VOCABULARY, toy_task
from tests.models.tiny import tiny_model
from tests.training import toy

NUM_STEPS = 8


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
        Objective(CrossEntropy(z_loss=1e-3), micro_batches=2, clip_norm=0.3),
        jit_compile,
    )
    batches = toy.make_batches(NUM_STEPS)
    calls = [
        summarize_steps(train_step(toy.stack(batches[i : i + steps_per_call])))
        for i in range(0, NUM_STEPS, steps_per_call)
    ]
    return {
        "replicas": strategy.num_replicas_in_sync,
        "calls": calls,
        "weights": weights_of(model, strategy),
    }


def weights_of(model, strategy):
    """Returns all weights, each on every replica."""
    return [
        [replica.numpy().tolist() for replica in strategy.experimental_local_results(v)]
        for v in (variable.value for variable in model.trainable_variables)
    ]


def run_auxiliary(strategy_name, micro_batches):
    """Returns the values and the weights after a step of SGD at rate 1."""
    keras.utils.set_random_seed(0)
    strategy = get_strategy(strategy_name)
    with strategy.scope():
        model = toy.ReportingModel()
        model.build()
        optimizer = keras.optimizers.SGD(1.0)
    train_step = TrainStep(
        model,
        optimizer,
        strategy,
        Objective(auxiliary_loss_weights={"spread": 0.3}, micro_batches=micro_batches),
    )
    (batch,) = toy.make_batches(1)
    values = summarize_steps(train_step(toy.stack([batch])))
    values = {name: np.asarray(value).tolist() for name, value in values.items()}
    return {"values": values, "weights": weights_of(model, strategy)}


class CountingReduction(tf.distribute.ReductionToOneDevice):
    """Notes the shapes of all that is reduced."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def reduce_implementation(self, reduce_op, per_replica_value, **options):
        self.shapes.append(per_replica_value.values[0].shape.as_list())
        return super().reduce_implementation(reduce_op, per_replica_value, **options)


def reduced_shapes():
    """Returns the shapes of the weights, and of all that a step reduces."""
    reduction = CountingReduction()
    devices = [d.name for d in tf.config.list_logical_devices("CPU")]
    strategy = tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)
    with strategy.scope():
        model = toy.ToyModel()
        model.build()
        optimizer = keras.optimizers.AdamW(0.1)
    train_step = TrainStep(model, optimizer, strategy, Objective(clip_norm=1.0))
    reduction.shapes.clear()
    function = train_step.run_steps.get_concrete_function(
        *train_step.arguments(toy.stack(toy.make_batches(1)))
    )
    return {
        "inputs": [x.shape.as_list() for x in function.inputs if x.shape.rank],
        "weights": [list(v.shape) for v in model.trainable_variables],
        "reduced": reduction.shapes,
    }


def images_of_replicas():
    """Returns a batch of images, what each replica gets of it, and where."""
    strategy = get_strategy("mirrored")
    rng = np.random.default_rng(0)
    batch = {
        "images": rng.normal(size=(6, 2, 2, 3)),
        "labels": rng.dirichlet(np.ones(5), (6, 1)),
    }
    parts = strategy.experimental_local_results(split_rows(batch, strategy))
    whole, *parts = (
        {name: np.asarray(x).tolist() for name, x in part.items()}
        for part in (batch, *parts)
    )
    split = split_rows(batch, strategy)["images"]
    devices = [x.device for x in strategy.experimental_local_results(split)]
    return {"whole": whole, "parts": parts, "devices": devices}


def dropout_masks():
    """Returns what each replica kept, in two draws, and the states after them."""
    strategy = get_strategy("mirrored")
    with strategy.scope():
        layer = Dropout(0.5, name="dropout")
        layer.build()

    def masks():
        with replica(tf.distribute.get_replica_context().replica_id_in_sync_group):
            return layer(tf.ones((64,)), training=True)

    @tf.function
    def draw():
        return strategy.run(masks)

    draws = [
        [r.numpy().tolist() for r in strategy.experimental_local_results(draw())]
        for _ in range(2)
    ]
    states = strategy.experimental_local_results(layer.seed_generator.state.value)
    return {"draws": draws, "states": [state.numpy().tolist() for state in states]}


def evaluated(strategy_name, jit_compile):
    """Returns logits and their sum by replica, and the weights."""
    keras.utils.set_random_seed(0)
    engine = TensorFlowEngine(strategy_name, jit_compile)
    engine.build_model(toy.ToyModel, "float32")

    def function(batch):
        logits = engine.model(batch, training=False)
        return {"logits": logits, "sum": tf.reduce_sum(logits)[None]}

    (batch,) = toy.make_batches(1)
    batch = {name: tf.constant(value) for name, value in batch.items()}
    found = engine.compile(function)(batch)
    return {
        **{name: value.tolist() for name, value in found.items()},
        "weights": [weight.tolist() for weight in engine.model.get_weights()],
    }


def answered(strategy_name):
    """Returns what a tiny model writes and what it scores, for three rows."""
    engine = TensorFlowEngine(strategy_name)
    keras.utils.set_random_seed(0)

    def make_model():
        model = tiny_model("t5_1_1", vocab_size=VOCABULARY.vocab_size)
        model.build = lambda: None  # It is built.
        return model

    engine.build_model(make_model, "float32")
    task, lengths = toy_task({}), {"inputs": 6, "targets": 6}
    answer = TextToText(engine.model, task, feature_lengths=lengths, engine=engine)
    scorer = TextScorer(engine.model, task, lengths, engine)
    pairs = [scorer.encode(b"a", b"b"), scorer.encode(b"ab", b"ba")]
    answers = answer(tf.constant(["a", "bc", ""]))
    return {
        "texts": [text.decode("latin-1") for text in answers["outputs"].numpy()],
        "scores": answers["scores"].numpy().tolist(),
        "pairs": [score for score, *_ in scorer.score(pairs, batch_size=2)],
    }


def variance_of_masks():
    """Returns how much the masks of a step's replicas differ, as a variance."""
    keras.utils.set_random_seed(0)
    strategy = get_strategy("mirrored")
    with strategy.scope():
        model = toy.MaskModel()
        model.build()
    objective = Objective(auxiliary_loss_weights={"toy/": 0.0})
    step = TrainStep(model, keras.optimizers.SGD(0.0), strategy, objective)
    sums = step(toy.stack(toy.make_batches(1)))
    return float(sums["auxiliary/toy/square"] - sums["auxiliary/toy/number"] ** 2)


def overflowed(strategy_name, jit_compile):
    """Returns the sums, scale and weights of float16 with a step that overflows."""
    keras.utils.set_random_seed(0)
    engine = TensorFlowEngine(strategy_name, jit_compile)
    optimizer = functools.partial(Adafactor, 0.1)
    objective = Objective(clip_norm=0.3)
    engine.build(toy.Overflowing, optimizer, "mixed_float16", objective)
    batches = toy.make_batches(3)
    for batch, token in zip(batches, (3, toy.BAD_TOKEN, 4), strict=True):
        batch["encoder_input_tokens"][:] = token
    sums = engine.step(toy.stack(batches))
    return {
        "sums": {name: float(value) for name, value in sums.items()},
        "scale": [float(v.numpy()) for v in engine.loss_scale.variables],
        "weights": weights_of(engine.model, engine._strategy),
    }


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
            ("mirrored", "adafactor", 1, True),
            ("mirrored", "adamw", 4, False),
        ]
    }
    result["auxiliary"] = {
        f"{strategy} {micro_batches}": run_auxiliary(strategy, micro_batches)
        for strategy, micro_batches in (("single", 1), ("mirrored", 2))
    }
    for strategy, jit in (("single", False), ("mirrored", True)):
        result[f"evaluated {strategy} {jit}"] = evaluated(strategy, jit)
    for strategy in ("single", "mirrored"):
        result[f"answered {strategy}"] = answered(strategy)
        result[f"overflowed {strategy}"] = overflowed(strategy, jit_compile=True)
    result["reductions"] = reduced_shapes()
    result["images"] = images_of_replicas()
    result["dropout"] = dropout_masks()
    result["variance of masks"] = variance_of_masks()
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
