"""Decoding speed: with and without the cache, with and without XLA, next to others.

    python -m benchmarks.decode [--seconds=20] [--batches=1,8,32] [--beams=1,4]
        [--inputs=64] [--models=t5,remixer] [--xla=on,off] [--anchors=PYTHON]
        [--uncached]

Answers of 64 tokens to inputs of 64, and no token ends an answer. `--uncached` compares
with decoding without the cache, where the whole decoder runs over all positions for
every new token: it takes minutes. The anchors are Hugging Face's `generate` and
CTranslate2, both in float32, with the weights of our T5.1.1. Each runs in a process of
PYTHON, which has torch, transformers and ctranslate2; a missing one is left out. Every
program has all cores. All programs take turns at each size until `--seconds` are over,
and end the round that has begun. A round is one call of 32 rows with 4 beams, or five
calls of one row. The first round, which compiles, does not count. Rates and their
ratios are medians of the rounds. The other models have as many parameters as T5.1.1,
those of mixing matrices of 512 positions included; longer inputs need larger ones.
"""

import argparse
import contextlib
import functools
import itertools
import os
import subprocess
import tempfile

import numpy as np
import tensorflow as tf

from benchmarks.export import text_task
from benchmarks.machine import print_machine
from benchmarks.measure import (
    median,
    print_header,
    print_row,
    ratio,
    seconds,
    take_turns,
)
from remixer_tf import configuration
from remixer_tf.decoding import T5Rules, beam_search, greedy_decode
from remixer_tf.models import EncoderDecoder
from remixer_tf.weights.to_hugging_face import export_hugging_face

BASE = "T5.1.1 small"
# By their names in `--models`: the name in tables, the architecture, its D_FF.
MODELS = {
    "t5": (BASE, "t5_1_1", 1024),
    "remixer": ("Remixer small, equal parameters", "remixer", 853),
    "gmlp": ("gMLP small, equal parameters", "gmlp", 3060),
    "amlp": ("aMLP small, equal parameters", "amlp", 2814),
}
LENGTH = 64
# Ratios: each function returns the contestant that a contestant is compared with.
GOALS = {
    "to CTranslate2 (goal 1)": lambda name: "ctranslate2",
    "to transformers (goal 1.5)": lambda name: "transformers",
    "to T5.1.1 (goal 0.95)": lambda name: f"{BASE}, XLA{name.partition(', XLA')[2]}",
}
_ANCHORS = os.path.join(os.path.dirname(__file__), "decode_anchors.py")


def random_inputs(batch, length=LENGTH):
    inputs = np.random.default_rng(0).integers(2, 32000, (batch, length))
    return {"encoder_input_tokens": tf.constant(inputs, tf.int32)}


def decode_without_cache(model, batch, max_length):
    """Greedy tokens `[batch, max_length]`, by one full pass for each position."""
    context = model.encode(batch)
    rows = batch["encoder_input_tokens"].shape[0]
    tokens = tf.zeros((rows, max_length), tf.int32)

    def advance(step, tokens):
        shifted = tf.pad(tokens, [[0, 0], [1, 0]])[:, :-1]
        x, _ = model.decoder(model.token_embedding(shifted), context=context)
        logits = model._compute_logits(x[:, step][:, None])[:, 0]
        best = tf.argmax(logits, -1, output_type=tf.int32)
        here = tf.one_hot(step, max_length, dtype=tf.int32)
        return step + 1, tokens + best[:, None] * here[None]

    _, tokens = tf.while_loop(
        lambda step, _: step < max_length, advance, (tf.constant(0), tokens)
    )
    return tokens


def search(model, batch, beams):
    """The tokens of greedy decoding, or of beam search; none ends an answer."""
    if beams == 1:
        return greedy_decode(model, batch, LENGTH, eos_id=-1).tokens
    return beam_search(
        model, batch, LENGTH, eos_id=-1, beams=beams, rules=T5Rules()
    ).tokens


class Ours:
    """A model's search as a graph, one for each shape."""

    def __init__(self, model, jit_compile):
        self._model = model
        self._jit_compile = jit_compile
        self._graph = functools.cache(self._make_graph)

    def _make_graph(self, length, batch, beams):
        inputs = random_inputs(batch, length)
        graph = tf.function(
            lambda: search(self._model, inputs, beams), jit_compile=self._jit_compile
        )
        return graph.get_concrete_function()

    def decode(self, length, batch, beams):
        self._graph(length, batch, beams)().numpy()


class Anchor:
    """Another library, in a process of its own that waits for its turn.

    `starts` is False if the library is missing there, which it says on the screen.
    """

    def __init__(self, python, folder, name):
        self._process = subprocess.Popen(
            [python, _ANCHORS, folder, str(LENGTH), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._name = name
        self.starts = self._process.stdout.readline() == "ready\n"

    def decode(self, length, batch, beams):
        """Decodes, and returns the CPU time that it took, in seconds."""
        return self._ask(length, batch, beams)

    def answer(self, lengths):
        """Answers questions of `benchmarks.answer_lengths`; returns as `decode`."""
        return self._ask(LENGTH, len(lengths), 1, *lengths)

    def _ask(self, *numbers):
        print(*numbers, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name} has ended; its message is above.")
        return float(line.split()[1])

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def print_cache(models, rounds=3):
    print_header(
        "model", "tokens/s with cache", "without", "cached/uncached", "same tokens"
    )
    batch = random_inputs(8)
    for name, model in models.items():
        graphs = {
            "cached": tf.function(lambda m=model: search(m, batch, 1)),
            "uncached": tf.function(
                lambda m=model: decode_without_cache(m, batch, LENGTH)
            ),
        }
        cached, uncached = (graph().numpy() for graph in graphs.values())
        times = take_turns(
            {key: lambda g=graph: g().numpy() for key, graph in graphs.items()}, rounds
        )
        print_row(
            name,
            *(f"{8 * LENGTH / median(times, key):.0f}" for key in graphs),
            f"{ratio(times, 'uncached', 'cached'):.1f}",
            f"{(cached == uncached).mean():.1%}",
        )


def print_rates(contestants, sizes, at_least):
    """Prints tokens/s, and how many times another's that is.

    Args:
        contestants: dictionary of names to functions of (length, batch, beams).
        sizes: list of tuples (beams, length, batch).
        at_least: float, seconds that all rounds of a size take together.
    """
    columns = "inputs", "batch", "beams", "who", "tokens/s", *GOALS, "first call (s)"
    print_header(*columns)
    for beams, length, batch in sizes:
        turns = {
            name: functools.partial(decode, length, batch, beams)
            for name, decode in contestants.items()
        }
        first = {name: seconds(turn) for name, turn in turns.items()}
        rounds = []
        while sum(sum(times.values()) for times in rounds) < at_least:
            rounds += take_turns(turns, 1)
        for name in turns:
            print_row(
                length,
                batch,
                beams,
                name,
                f"{batch * LENGTH / median(rounds, name):.0f}",
                *(times_as_fast(rounds, name, find(name)) for find in GOALS.values()),
                f"{first[name]:.1f}",
            )


def times_as_fast(rounds, name, other):
    """How many times as fast as another, a str; "" where the other did not run."""
    if other not in rounds[0] or other == name:
        return ""
    return f"{ratio(rounds, other, name):.2f}"


def write_for_anchors(model, folder):
    return export_hugging_face(model, text_task(), os.path.join(folder, "t5"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--beams", default="1,4")
    parser.add_argument("--inputs", default=str(LENGTH))
    parser.add_argument("--models", default="t5,remixer")
    parser.add_argument("--xla", default="on,off")
    parser.add_argument("--anchors", metavar="PYTHON")
    parser.add_argument("--uncached", action="store_true")
    options = parser.parse_args()
    sizes = options.beams, options.inputs, options.batches
    sizes = [[int(n) for n in x.split(",")] for x in sizes]
    longest = max(512, *sizes[1])
    models = {}
    for key in options.models.split(","):
        name, architecture, d_ff = MODELS[key]
        files = ["models/t5_1_1_small.gin", f"architectures/{architecture}.gin"]
        given = [f"D_FF = {d_ff}"] + [f"MAX_LENGTH = {longest}"] * (key != "t5")
        models[name] = configuration.read(files, given).call(EncoderDecoder)
        models[name].build()
    if options.uncached:
        print_cache(models)
    contestants = {
        f"{name}, XLA {xla}": Ours(model, xla == "on").decode
        for xla in options.xla.split(",")
        for name, model in models.items()
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as anchors:
        if options.anchors:
            path = write_for_anchors(next(iter(models.values())), folder)
            for name in ("ctranslate2", "transformers"):
                anchor = Anchor(options.anchors, path, name)
                anchors.callback(anchor.close)
                if anchor.starts:
                    contestants[name] = anchor.decode
        print_machine(options.anchors)
        print_rates(contestants, [*itertools.product(*sizes)], options.seconds)


if __name__ == "__main__":
    main()
