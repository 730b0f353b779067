"""Time of a training step: T5.1.1 and Remixer, on TensorFlow and on JAX, in one run.

    python -m benchmarks.training_step [--models=t5_1_1_small,remixer_small]
        [--dtypes=float32,mixed_bfloat16] [--rounds=5] [--anchors=PYTHON]

Batch 4, lengths 512 and 114, Adafactor, no dropout; two steps in a call, whose time is
divided by two. Each engine has a process. The processes of a model take turns, so that
a noisy machine disturbs them alike. The ratio is to TensorFlow without XLA, the default
on CPUs. It is the median over the rounds. "First call" is the time from an empty
process until two steps are done, imports and compiling included. "Share" is relative to
the rate of JAX's float32 product of 1024 x 1024, measured once a model. With JAX and
torch glibc keeps freed memory, as the guide "From one CPU to a pod" advises.

With `--anchors` transformers' T5 takes turns with t5_1_1_small in float32, plain and
compiled by `torch.compile`. Its optimizer is `torch.optim.Adafactor`. PYTHON has torch
and transformers.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import time

from benchmarks.machine import print_machine
from benchmarks.measure import median, print_header, print_row, ratio, take_turns

BATCH, INPUTS, TARGETS, STEPS = 4, 512, 114, 2
# name: file of gin/models, bindings
MODELS = {
    "t5_1_1_small": ("t5_1_1_small", []),
    "remixer_small": ("remixer_small", []),
    "remixer_small_equal": ("remixer_small", ["D_FF = 853"]),  # T5.1.1's parameters
}
# name: Keras' backend, arguments of TensorFlowEngine
ENGINES = {
    "TensorFlow": ("tensorflow", {"jit_compile": False}),
    "TensorFlow, XLA": ("tensorflow", {"jit_compile": True}),
    "JAX": ("jax", {}),
}
# name: KIND of training_step_reference.py
ANCHORS = {"torch": "eager", "torch.compile": "compile"}
_ANCHOR = os.path.join(os.path.dirname(__file__), "training_step_reference.py")
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_ARENA_MAX": "1",
}


def make_engine(name, model, dtype, steps):
    """Returns an `Engine` of `ENGINES` with a model, and a random batch of steps."""
    import tensorflow as tf

    from remixer_tf import configuration
    from remixer_tf.analysis.costs import random_superbatch
    from remixer_tf.engines.backend_engine import backend_engine
    from remixer_tf.engines.tensorflow.engine import TensorFlowEngine
    from remixer_tf.models import EncoderDecoder
    from remixer_tf.objectives.losses import CrossEntropy
    from remixer_tf.objectives.objective import Objective
    from remixer_tf.optimizers import Adafactor

    file, bindings = MODELS[model]
    settings = configuration.read([f"models/{file}.gin"], bindings)
    _, arguments = ENGINES[name]
    engine = backend_engine(functools.partial(TensorFlowEngine, **arguments))
    engine.build(
        settings.bound(EncoderDecoder),
        lambda: Adafactor(1e-3),
        dtype,
        Objective(CrossEntropy(z_loss=1e-4)),
    )
    spec = engine.model.batch_spec(BATCH, {"inputs": INPUTS, "targets": TARGETS})
    batch = random_superbatch(spec, engine.model)
    return engine, {key: tf.repeat(x, steps, axis=0) for key, x in batch.items()}


def serve(name, model, dtype):
    """Takes two steps for each line that it reads, and answers with a line of JSON."""
    engine, batch = make_engine(name, model, dtype, STEPS)
    for _ in sys.stdin:
        float(engine.step(batch)["loss"])
        print(json.dumps("done"), flush=True)
    about = {"rate": engine.matmul_rate(), "flops": engine.cost(batch).flops}
    print(json.dumps(about), flush=True)


class Worker:
    """A process that takes two steps for each line that it reads."""

    def __init__(self, command, environment=None):
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def step(self):
        """Takes two steps."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self._answer()

    def close(self):
        """Ends the process; returns what `serve` says at its end, or None."""
        self._process.stdin.close()
        line = self._process.stdout.readline()
        self._process.wait()
        return json.loads(line) if line else None

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("A process has ended; its message is above.")
        return json.loads(line)


def ours(name, model, dtype):
    """A `Worker` of `serve`."""
    backend, _ = ENGINES[name]
    command = [sys.executable, "-m", "benchmarks.training_step", f"--serve={name}"]
    keep = KEEP_MEMORY if backend == "jax" else {}
    return Worker(
        [*command, f"--models={model}", f"--dtypes={dtype}"],
        {"KERAS_BACKEND": backend, **keep},
    )


def print_rows(model, dtype, rounds, anchors):
    """Measures a model on all engines and prints a row for each."""
    start_all = {name: functools.partial(ours, name, model, dtype) for name in ENGINES}
    anchored = anchors and (model, dtype) == ("t5_1_1_small", "float32")
    if anchored:
        sizes = [str(n) for n in (BATCH, INPUTS, TARGETS, STEPS)]
        for name, kind in ANCHORS.items():
            command = [anchors, _ANCHOR, kind, *sizes]
            start_all[name] = functools.partial(Worker, command, KEEP_MEMORY)
    workers, first = {}, {}
    for name, start_one in start_all.items():
        start = time.perf_counter()
        workers[name] = start_one()
        workers[name].step()
        first[name] = time.perf_counter() - start
    times = take_turns({name: w.step for name, w in workers.items()}, rounds)
    about = {name: worker.close() for name, worker in workers.items()}
    rate = about["JAX"]["rate"]
    for name in workers:
        flops = (about[name] or about["TensorFlow"])["flops"]  # Torch counts none.
        per_step = median(times, name) / STEPS
        print_row(
            model,
            dtype,
            name,
            f"{1e3 * per_step:.0f}",
            f"{BATCH * (INPUTS + TARGETS) / per_step:.0f}",
            f"{flops / 1e9:.1f}",
            f"{flops / per_step / rate:.0%}",
            f"{ratio(times, name, 'TensorFlow'):.2f}",
            f"{ratio(times, name, 'torch.compile'):.2f}" if anchored else "",
            f"{first[name]:.1f}",
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="t5_1_1_small,remixer_small")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--anchors", metavar="PYTHON")
    parser.add_argument("--serve", choices=ENGINES, help="for the command's own use")
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.models, options.dtypes)
        return
    print_machine(options.anchors)
    print_header(
        "model",
        "dtype",
        "engine",
        "ms/step",
        "tokens/s",
        "GFLOP/step",
        "share of matmul rate",
        "ratio to TensorFlow",
        "to torch.compile (goal 0.80)",
        "first call (s)",
    )
    for model in options.models.split(","):
        for dtype in options.dtypes.split(","):
            print_rows(model, dtype, options.rounds, options.anchors)


if __name__ == "__main__":
    main()
