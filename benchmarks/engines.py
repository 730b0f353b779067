"""Time of a training step on TensorFlow's engine and on JAX's, in one run.

    python -m benchmarks.engines [--models=t5_1_1_small,remixer_small] [--rounds=5]

Batch 4, lengths 512 and 114, Adafactor, float32, no dropout, the two steps of a call
divided by two. Each engine has a process, and they take turns in each round, so that a
noisy machine disturbs them alike; ratios are the medians over the rounds, to TensorFlow
without XLA, which is the default on CPUs. "First call" is from an empty process,
imports and compiling included, until two steps are done. "Share" is of the rate of
JAX's matrix product of 1024 x 1024, measured once.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time

BATCH, INPUTS, TARGETS, STEPS = 4, 512, 114, 2
# name: Keras' backend, arguments of TensorFlowEngine
ENGINES = {
    "TensorFlow": ("tensorflow", {"jit_compile": False}),
    "TensorFlow, XLA": ("tensorflow", {"jit_compile": True}),
    "JAX": ("jax", {}),
}


def serve(name, model):
    """Steps whenever a line is read, and writes what came out as a line of JSON."""
    import tensorflow as tf

    from remixer_tf import configuration
    from remixer_tf.analysis.costs import random_superbatch
    from remixer_tf.objectives.losses import CrossEntropy
    from remixer_tf.optimizers import Adafactor
    from remixer_tf.training.backend_engine import backend_engine
    from remixer_tf.training.tensorflow_engine import TensorFlowEngine

    configuration.parse_gin([f"models/{model}.gin"], [])
    _, arguments = ENGINES[name]
    engine = backend_engine(functools.partial(TensorFlowEngine, **arguments))
    engine.build(
        lambda: configuration.call("EncoderDecoder"),
        lambda: Adafactor(1e-3),
        "float32",
        loss_fn=CrossEntropy(z_loss=1e-4),
    )
    spec = engine.model.batch_spec(BATCH, {"inputs": INPUTS, "targets": TARGETS})
    batch = random_superbatch(spec, engine.model)
    batch = {key: tf.repeat(value, STEPS, axis=0) for key, value in batch.items()}
    for _ in sys.stdin:
        start = time.perf_counter()
        float(engine.step(batch)["loss"])
        seconds = (time.perf_counter() - start) / STEPS
        print(json.dumps({"seconds": seconds}), flush=True)
    about = {"rate": engine.matmul_rate(), "flops": engine.cost(batch).flops}
    print(json.dumps(about), flush=True)


class Worker:
    """A process of `serve`."""

    def __init__(self, name, model):
        backend, _ = ENGINES[name]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.engines", f"--serve={name}"]
            + [f"--models={model}"],
            env={**os.environ, "KERAS_BACKEND": backend},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self):
        """Returns the seconds of a step."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()["seconds"]

    def close(self):
        """Ends the process; returns FLOPs of a step, and the rate of a product."""
        self._process.stdin.close()
        about = self._answer()
        self._process.wait()
        return about["flops"], about["rate"]

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("A process has ended; its message is above.")
        return json.loads(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="t5_1_1_small,remixer_small")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=ENGINES, help="for the command's own use")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.models)
        return
    print(
        "| model | engine | ms/step | tokens/s | GFLOP/step | share of matmul rate "
        "| ratio to TensorFlow | first call (s) |"
    )
    print("|---" * 8 + "|")
    for model in options.models.split(","):
        workers, first = {}, {}
        for name in ENGINES:
            start = time.perf_counter()
            workers[name] = Worker(name, model)
            workers[name].step()
            first[name] = time.perf_counter() - start
        rounds = [
            {name: worker.step() for name, worker in workers.items()}
            for _ in range(options.rounds)
        ]
        about = {name: worker.close() for name, worker in workers.items()}
        _, rate = about["JAX"]
        for name, (flops, _) in about.items():
            seconds = statistics.median(r[name] for r in rounds)
            ratio = statistics.median(r[name] / r["TensorFlow"] for r in rounds)
            print(
                f"| {model} | {name} | {seconds * 1e3:.0f} "
                f"| {BATCH * (INPUTS + TARGETS) / seconds:.0f} | {flops / 1e9:.1f} "
                f"| {flops / seconds / rate:.0%} | {ratio:.2f} | {first[name]:.1f} |",
                flush=True,
            )
        print(f"<!-- matmul rate: {rate / 1e9:.1f} GFLOP/s -->", flush=True)


if __name__ == "__main__":
    main()
