"""One of several workers that train the toy model; prints its weights as JSON.

    TF_CONFIG=... python -m tests.engines.multi_worker MODEL_DIR TRAIN_STEPS

Rows are not shuffled: the hosts' shares of a batch are together what one host reads.
"""

import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

from remixer_tf.engines.tensorflow.engine import TensorFlowEngine
from remixer_tf.run import Run
from tests.training import toy


def dataset(seed, steps_per_call, shard_info, batch_size=8):
    rows = toy.make_batches(1, batch_size=64)[0]
    data = tf.data.Dataset.from_tensor_slices(rows)
    data = data.shard(shard_info.num_shards, shard_info.index).repeat()
    data = data.batch(batch_size // shard_info.num_shards, drop_remainder=True)
    return data.batch(steps_per_call, drop_remainder=True)


def train_toy(model_dir, train_steps, strategy):
    """Returns the final weights, NumPy arrays."""
    built = []

    def model():
        built.append(toy.ToyModel())
        return built[0]

    toy.train_toy(
        Run(model, engine=lambda: TensorFlowEngine(strategy)),
        model_dir,
        train_steps,
        dataset=dataset,
        steps_per_call=2,
        log_period=2,
        checkpoint_period=10,
        clip_norm=0.5,
        micro_batches=2,
    )
    return [v.numpy() for v in built[0].trainable_variables]


if __name__ == "__main__":
    model_dir, train_steps = sys.argv[1:]
    weights = train_toy(model_dir, int(train_steps), "multi_worker")
    print(json.dumps([weight.tolist() for weight in weights]))
