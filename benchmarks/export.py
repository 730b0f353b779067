"""Exports: their size, and how soon a fresh process answers with them.

    python -m benchmarks.export [--models=t5_1_1_small,remixer_small] [--rounds=5]
        [--kinds=float32,bfloat16,litert]

Random weights, a question of 64 bytes, 64 tokens of answer, batch 1, greedy; steady is
the median of the rounds. Kinds are SavedModels with weights of a type, LiteRT, and on
demand `onnx`, whose conversion of a small model takes a minute or more. Loading is
`tf.saved_model.load`, after TensorFlow is imported. LiteRT and ONNX Runtime read and
write ids; that their answers are TensorFlow's is checked, and is part of the export.
"""

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time

import seqio

from benchmarks.measure import print_header, print_row
from remixer_tf import configuration
from remixer_tf.decoding import greedy_decode
from remixer_tf.models import EncoderDecoder
from remixer_tf.serving import saved_model
from remixer_tf.serving.converted import RUNTIMES, export_tokens
from remixer_tf.serving.text_to_text import TextToText

MODELS = "t5_1_1_small,remixer_small"
KINDS = "float32,bfloat16,litert"
LENGTH = 64
LOAD_SAVED_MODEL = """
import tensorflow as tf
import tensorflow_text

def load():
    global model
    model = tf.saved_model.load(sys.argv[1])

def ask():
    answer = model.signatures["serving_default"]
    answer(inputs=tf.constant(["a" * int(sys.argv[2])]))["scores"].numpy()
"""
LOAD_CONVERTED = """
import numpy
from remixer_tf.serving.converted import RUNTIMES

def load():
    global run
    runtime = RUNTIMES[sys.argv[4]]
    run = runtime.load(f"{sys.argv[1]}/{runtime.FILE}")

def ask():
    run(inputs=numpy.full([1, int(sys.argv[2])], 100, "int32"))
"""
ASK = """
import json, statistics, sys, time
LOAD

def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start

load, first = seconds(load), seconds(ask)
steady = statistics.median(seconds(ask) for _ in range(int(sys.argv[3])))
print(json.dumps([load, first, steady]))
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kinds", default=KINDS)
    options = parser.parse_args()
    print_header(
        "model",
        "stored as",
        "size (MB)",
        "export (s)",
        "load (s)",
        "first answer (s)",
        "steady (ms)",
    )
    for name in options.models.split(","):
        settings = configuration.read([f"models/{name}.gin"], [])
        model = settings.call(EncoderDecoder)
        model.build()
        for kind in options.kinds.split(","):
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                path = export(model, kind, folder)
                seconds = time.perf_counter() - start
                size = saved_model.size_on_disk(path) / 1e6
                load, first, steady = ask(path, options.rounds, kind)
            print_row(
                name,
                kind,
                f"{size:.1f}",
                f"{seconds:.1f}",
                f"{load:.2f}",
                f"{first:.2f}",
                f"{1000 * steady:.0f}",
            )


def export(model, kind, folder):
    """Writes a SavedModel with weights of a type, or a file of another runtime."""
    path = os.path.join(folder, kind)
    if kind in RUNTIMES:
        export_tokens(servable(model).tokens, text_task(), kind, path)
    else:
        saved_model.export(servable(model, kind), path, "")
    return path


def text_task():
    """A task of bytes without examples, for what is exported with random weights."""
    text = seqio.Feature(seqio.ByteVocabulary())
    return seqio.Task(
        "export_benchmark",
        source=seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=[]),
        output_features={"inputs": text, "targets": text},
        preprocessors=[],
    )


def servable(model, weights="float32"):
    """A `TextToText` over bytes. No token ends an answer."""
    return TextToText(
        model,
        text_task(),
        feature_lengths={"inputs": LENGTH, "targets": LENGTH},
        decode_fn=functools.partial(greedy_decode, eos_id=-1),
        weights=weights,
    )


def ask(path, rounds, kind):
    """Seconds that a fresh process takes to load, to answer first, and then."""
    load = LOAD_CONVERTED if kind in RUNTIMES else LOAD_SAVED_MODEL
    code = ASK.replace("LOAD", load)
    process = subprocess.run(
        [sys.executable, "-c", code, path, str(LENGTH), str(rounds), kind],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
