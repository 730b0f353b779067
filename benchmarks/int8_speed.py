"""Answers by weights in 8 bits: tokens/s next to float32, CTranslate2 and transformers.

    taskset -c 0 python -m benchmarks.int8_speed
        [--models=t5_1_1_small,remixer_small] [--sizes=1x1,8x1,1x4,8x4] [--rounds=5]
        [--anchors=PYTHON] [--folder=FOLDER] [--runtimes=litert,onnx]
        [--gin=BINDING]

Random weights, questions and answers of 64 tokens; no token ends an answer. A size is
rows x beams. Under `taskset` each program has one core and one thread, and its CPU time
counts, so that other programs on the machine disturb little. All take turns; rates and
ratios are medians of the rounds, and the first call, which prepares, does not count.
LiteRT reads at most eight rows a call. The anchors have T5.1.1 small, see
`benchmarks.decode`. All contestants are in memory together: for less than
4 GB, give one runtime and sizes of one number of beams a run.
"""

import argparse
import contextlib
import functools
import itertools
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf

from benchmarks.decode import LENGTH, Anchor, write_for_anchors
from benchmarks.machine import print_machine
from benchmarks.measure import print_header, print_row
from remixer_tf import configuration
from remixer_tf.decoding import T5Rules, beam_search, greedy_decode
from remixer_tf.exporting import WEIGHTS
from remixer_tf.models import EncoderDecoder
from remixer_tf.serving.converted import RUNTIMES
from remixer_tf.serving.token_graph import TokenGraph

ANCHORS = ("transformers", "ctranslate2", "ctranslate2_int8")


def questions(batch):
    rows = np.random.default_rng(0).integers(2, 32000, (batch, LENGTH))
    return rows.astype("int32")


def token_graph(model, weights="float32", beams=1):
    decode = functools.partial(greedy_decode, eos_id=-1)
    if beams > 1:
        decode = functools.partial(beam_search, eos_id=-1, beams=beams, rules=T5Rules())
    return TokenGraph(
        model,
        input_length=LENGTH,
        max_length=LENGTH,
        decode_fn=decode,
        weights=weights,
        jit_compile=False,
    )


class Ours:
    """A contestant: CPU seconds of `(batch, beams)`."""

    def __init__(self, answer):
        self._answer = answer

    def __call__(self, batch, beams):
        rows = questions(batch)
        start = time.process_time()
        self._answer(beams, rows)
        return time.process_time() - start


def make_model(name, bindings):
    settings = configuration.read([f"models/{name}.gin"], bindings)
    model = settings.call(EncoderDecoder)
    model.build()
    return model


def path_of(folder, name, key, beams, weights):
    return os.path.join(folder, f"{name}_{beams}_{weights}_{RUNTIMES[key].FILE}")


def write_files(name, bindings, key, beams, folder):
    """Writes a model for a runtime in each type."""
    runtime = RUNTIMES[key]
    graph = token_graph(make_model(name, bindings), beams=beams)
    path = path_of(folder, name, key, beams, "float32")
    functions = [graph.function(rows) for rows in runtime.BATCHES]
    runtime.convert(graph, functions, path)
    for weights in WEIGHTS[key][1:]:
        copy = path_of(folder, name, key, beams, weights)
        shutil.copy(path, copy)
        runtime.quantize(copy, graph.weights.matrices(), weights)


def write_missing_files(names, bindings, runtimes, beams, folder):
    """Does it in processes of their own, one by one: converters take much memory."""
    for name, key, n in itertools.product(names, runtimes, beams):
        if not os.path.exists(path_of(folder, name, key, n, WEIGHTS[key][-1])):
            process = multiprocessing.get_context("spawn").Process(
                target=write_files, args=(name, bindings, key, n, folder)
            )
            process.start()
            process.join()


def make_contestants(name, model, beams, runtimes, folder):
    """Returns dictionary of names to functions of (batch, beams)."""
    contestants = {}
    for weights in ("float32", "int8"):
        graphs = {n: token_graph(model, weights, n) for n in beams}
        functions = {n: graph.function() for n, graph in graphs.items()}
        size = graphs[beams[0]].weights.num_bytes / 1e6

        def answer(n, rows, functions=functions):
            functions[n](tf.constant(rows))["outputs"].numpy()

        contestants[f"SavedModel {weights}, {size:.1f} MB"] = Ours(answer)
    for key in runtimes:
        runtime = RUNTIMES[key]
        load = load_onnx if key == "onnx" else runtime.load
        for weights in WEIGHTS[key]:
            paths = {n: path_of(folder, name, key, n, weights) for n in beams}
            runs = {n: load(path) for n, path in paths.items()}
            size = os.path.getsize(paths[beams[0]]) / 1e6
            contestants[f"{runtime.NAME} {weights}, {size:.1f} MB"] = Ours(
                lambda n, rows, runs=runs: runs[n](inputs=rows)
            )
    return contestants


def load_onnx(path):
    """As `onnx_runtime.load`, with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    return lambda **inputs: session.run(None, inputs)


def float32_of(name, contestants):
    """The contestant of the same program with weights in float32."""
    program = name.split()[0].removesuffix("_int8")
    names = [n for n in contestants if n.startswith(program) and "int8" not in n]
    return names[0]


def compare(model_name, contestants, batch, beams, rounds):
    """Prints the rates of one size."""
    for answer in contestants.values():
        answer(batch, beams)
    times = [
        {n: answer(batch, beams) for n, answer in contestants.items()}
        for _ in range(rounds)
    ]

    def ratio(name, other):
        if other not in contestants or other == name:
            return ""
        return f"{statistics.median(t[other] / t[name] for t in times):.2f}"

    for name in contestants:
        seconds = statistics.median(t[name] for t in times)
        print_row(
            model_name,
            batch,
            beams,
            name,
            f"{batch * LENGTH / seconds:.0f}",
            ratio(name, float32_of(name, contestants)),
            ratio(name, "ctranslate2_int8"),
            ratio(name, "transformers"),
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="t5_1_1_small,remixer_small")
    parser.add_argument("--sizes", default="1x1,8x1,1x4,8x4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--anchors", metavar="PYTHON")
    parser.add_argument("--runtimes", default=",".join(RUNTIMES))
    parser.add_argument("--gin", action="append", default=[], metavar="BINDING")
    parser.add_argument("--folder", help="keeps converted files for another time")
    options = parser.parse_args()
    sizes = [tuple(map(int, x.split("x"))) for x in options.sizes.split(",")]
    print_machine(options.anchors)
    print_header(
        "model",
        "rows",
        "beams",
        "who",
        "tokens/s",
        "to its float32",
        "to CTranslate2's int8",
        "to transformers",
    )
    names, runtimes = options.models.split(","), options.runtimes.split(",")
    with tempfile.TemporaryDirectory() as local, contextlib.ExitStack() as anchors:
        folder, others = options.folder or local, {}
        os.makedirs(folder, exist_ok=True)
        beams = sorted({n for _, n in sizes})
        write_missing_files(names, options.gin, runtimes, beams, folder)
        if options.anchors:
            path = write_for_anchors(make_model("t5_1_1_small", options.gin), local)
            for library in ANCHORS:
                anchor = Anchor(options.anchors, path, library)
                anchors.callback(anchor.close)
                if anchor.starts:
                    others[library] = functools.partial(anchor.decode, LENGTH)
        for name in names:
            model = make_model(name, options.gin)
            contestants = make_contestants(name, model, beams, runtimes, folder)
            for batch, n in sizes:
                compare(name, contestants | others, batch, n, options.rounds)


if __name__ == "__main__":
    main()
