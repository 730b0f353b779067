"""Time of a training step: T5.1.1 small against Remixer small.

    python -m benchmarks.train_step [--rounds=5] [--dtypes=float32,mixed_bfloat16]

Batch 4, lengths 512 and 114, Adafactor, no dropout. The models take turns within each
round, so that a noisy machine disturbs them alike; the ratio to T5.1.1 is the median
over the rounds. One configuration is held at a time. The matmul rate is measured at
the start of every round, in float32.
"""

import argparse
import statistics
import time

import keras
import numpy as np
import tensorflow as tf

from remixer_tf import configuration
from remixer_tf.objectives.losses import CrossEntropy
from remixer_tf.optimizers import Adafactor
from remixer_tf.training.flops import matmul_flops, matmul_rate
from remixer_tf.training.train_step import TrainStep

MODELS = {
    "t5_1_1_small": ("models/t5_1_1_small.gin", []),
    "remixer_small, equal parameters": ("models/remixer_small.gin", ["D_FF = 853"]),
    "remixer_small": ("models/remixer_small.gin", []),
}
BATCH, INPUTS, TARGETS = 4, 512, 114


def random_superbatch(vocab_size=32100):
    """One step of full rows, `[1, batch, length]`."""
    rng = np.random.default_rng(0)

    def tokens(length):
        return rng.integers(2, vocab_size, (1, BATCH, length)).astype("int32")

    targets = tokens(TARGETS)
    batch = {
        "encoder_input_tokens": tokens(INPUTS),
        "decoder_input_tokens": np.roll(targets, 1, axis=-1),
        "decoder_target_tokens": targets,
        "decoder_loss_weights": np.ones_like(targets),
    }
    return {key: tf.constant(value) for key, value in batch.items()}


def make_step(gin_file, bindings, dtype_policy, jit_compile):
    """A built and traced train step, its parameters and its matmul FLOPs."""
    keras.config.set_dtype_policy(dtype_policy)
    configuration.parse_gin([gin_file], bindings)
    model = configuration.call("EncoderDecoder")
    model.build()
    keras.config.set_dtype_policy("float32")
    step = TrainStep(
        model,
        Adafactor(1e-3),
        tf.distribute.get_strategy(),
        loss_fn=CrossEntropy(z_loss=1e-4),
        jit_compile=jit_compile,
    )
    batch = random_superbatch()
    flops = matmul_flops(step.get_concrete_function(batch))
    start = time.perf_counter()
    float(step(batch)["loss"])
    compile_seconds = time.perf_counter() - start
    parameters = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    return step, batch, parameters, flops, compile_seconds


def measure(step, batch):
    start = time.perf_counter()
    float(step(batch)["loss"])
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtypes", default="float32,mixed_bfloat16")
    options = parser.parse_args()
    print(
        "| dtype | XLA | model | parameters (M) | ms/step | tokens/s | GFLOP/step | "
        "share of matmul rate | ratio to T5.1.1 | first call (s) |"
    )
    print("|---" * 10 + "|")
    for dtype in options.dtypes.split(","):
        for jit_compile in (False, True):
            made = {
                name: make_step(*model, dtype, jit_compile)
                for name, model in MODELS.items()
            }
            times, rates = {name: [] for name in made}, []
            for _ in range(options.rounds):
                rates.append(matmul_rate(seconds=0.5))
                for name, (step, batch, *_) in made.items():
                    times[name].append(measure(step, batch))
            base = times["t5_1_1_small"]
            for name, (_, _, parameters, flops, compile_seconds) in made.items():
                seconds = statistics.median(times[name])
                ratios = [a / b for a, b in zip(times[name], base, strict=True)]
                print(
                    f"| {dtype} | {'on' if jit_compile else 'off'} | {name} "
                    f"| {parameters / 1e6:.2f} | {seconds * 1e3:.0f} "
                    f"| {BATCH * (INPUTS + TARGETS) / seconds:.0f} "
                    f"| {flops / 1e9:.1f} "
                    f"| {flops / seconds / statistics.median(rates):.0%} "
                    f"| {statistics.median(ratios):.2f} | {compile_seconds:.1f} |",
                    flush=True,
                )
            del made
            rate = statistics.median(rates) / 1e9
            print(f"<!-- matmul rate: {rate:.1f} GFLOP/s in float32 -->", flush=True)


if __name__ == "__main__":
    main()
