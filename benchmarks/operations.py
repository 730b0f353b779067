"""Where the time goes: the operations of a training step, or of writing answers.

    python -m benchmarks.operations [--models=t5_1_1_small] [--what=step,answers]
        [--rows=32]

The step is that of `benchmarks.training_step`, the answers those of `benchmarks.decode`
with XLA, greedily, by 64 tokens. KERAS_BACKEND=jax profiles JAX's step. The profiler
adds up the time of each kind of operation, over all threads: operations that run at the
same time count twice. An operation of XLA is a product ("dot", "MatMul"), or what XLA
has fused into one. Eigen's products in XLA end after their operation, and are missing.
"""

import argparse
import collections
import glob
import os
import re
import sys
import tempfile
import time

import keras
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks import decode, training_step
from benchmarks.measure import print_header, print_row
from remixer_tf import configuration
from remixer_tf.models import EncoderDecoder

MOST = 12  # kinds that are printed
# Events of runtimes that hold others. Those of Python begin with "$".
OUTER = re.compile(
    r"Execut|Process|Run|__|<|[Ww]ait|Ready|profiler|array|Function|_loop"
)


def operations(call):
    """Returns {kind: (seconds, how often)} of the operations of a call."""
    with tempfile.TemporaryDirectory() as folder:
        if keras.backend.backend() == "jax":
            import jax

            with jax.profiler.trace(folder):
                call()
        else:
            tf.profiler.experimental.start(
                folder, tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)
            )
            call()
            tf.profiler.experimental.stop()
        (path,) = glob.glob(f"{folder}/**/*.xplane.pb", recursive=True)
        with open(path, "rb") as file:
            space = xplane_pb2.XSpace.FromString(file.read())
    found = collections.defaultdict(lambda: [0.0, 0])
    for plane in space.planes:
        for event in (event for line in plane.lines for event in line.events):
            name = plane.event_metadata[event.metadata_id].name
            kind = re.sub(r"([._]\d+)+$", "", name.rpartition(":")[2])
            if kind and name[0] != "$" and not OUTER.search(kind):
                found[kind][0] += event.duration_ps / 1e12
                found[kind][1] += 1
    return found


def make_step(model):
    """A training step, and a function from its seconds to its share of matmul rate."""
    engine, batch = training_step.make_engine("TensorFlow", model, "float32", 1)
    flops, rate = engine.cost(batch).flops, engine.matmul_rate()
    return lambda: float(engine.step(batch)["loss"]), lambda s: flops / s / rate


def make_answers(model, rows):
    """A function that answers so many rows, and None for no share."""
    file, bindings = training_step.MODELS[model]
    model = configuration.read([f"models/{file}.gin"], bindings).call(EncoderDecoder)
    model.build()
    ours = decode.Ours(model, True)
    return lambda: ours.decode(decode.LENGTH, rows, 1), None


def print_profile(name, call, share):
    call()  # It compiles.
    start, cpu = time.perf_counter(), time.process_time()
    call()
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    of_rate = f", {share(wall):.0%} of the matmul rate" if share else ""
    print(f"\n{name}: {wall:.2f} s, {cpu:.2f} s of CPU time{of_rate}\n")
    found = operations(call)
    total = sum(seconds for seconds, _ in found.values())
    print_header("operation", "times", "s", "share")
    for kind in sorted(found, key=found.get, reverse=True)[:MOST]:
        seconds, times = found[kind]
        print_row(kind, times, f"{seconds:.3f}", f"{seconds / total:.0%}")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="t5_1_1_small")
    parser.add_argument("--what", default="step,answers")
    parser.add_argument("--rows", type=int, default=32)
    options = parser.parse_args()
    flags = os.environ.get("XLA_FLAGS", "")
    for model in options.models.split(","):
        if "step" in options.what:
            print_profile(f"{model}, a training step", *make_step(model))
        if "answers" in options.what:
            name = f"{model}, answers to {options.rows} rows, XLA_FLAGS={flags!r}"
            print_profile(name, *make_answers(model, options.rows))


if __name__ == "__main__":
    main()
