"""One of several workers that train the toy model; prints a line of JSON at the end.

    TF_CONFIG=... python -m tests.training.multi_worker MODEL_DIR TRAIN_STEPS STRATEGY

Rows are not shuffled: the hosts' shares of a batch are together what one host reads.
"""

import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import tensorflow as tf

from remixer_tf.training.loop import train
from remixer_tf.training.tensorflow_engine import TensorFlowEngine
from tests.training import toy


def dataset(seed, steps_per_call, shard_info, batch_size=8):
    rows = toy.make_batches(1, batch_size=64)[0]
    data = tf.data.Dataset.from_tensor_slices(rows)
    data = data.shard(shard_info.num_shards, shard_info.index).repeat()
    data = data.batch(batch_size // shard_info.num_shards, drop_remainder=True)
    return data.batch(steps_per_call, drop_remainder=True)


def main(model_dir, train_steps, strategy):
    built = []

    def model():
        built.append(toy.ToyModel())
        return built[0]

    train(
        model_dir,
        model,
        lambda: keras.optimizers.Adam(0.01),
        dataset,
        train_steps=int(train_steps),
        steps_per_call=2,
        log_period=2,
        checkpoint_period=10,
        clip_norm=0.5,
        micro_batches=2,
        engine=lambda: TensorFlowEngine(strategy),
    )
    print(json.dumps([v.numpy().tolist() for v in built[0].trainable_variables]))


if __name__ == "__main__":
    main(*sys.argv[1:])
