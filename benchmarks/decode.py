"""Decoding speed: with and without the cache, with and without XLA, beside others.

    python -m benchmarks.decode [--seconds=20] [--batches=1,8,32] [--beams=1,4]
        [--anchors=PYTHON] [--uncached]

Inputs and answers of 64 tokens, and no token ends an answer. `--uncached` compares with
decoding without the cache, where the whole decoder runs over all positions for every
new token: it takes minutes. The anchors are Hugging Face's `generate` and CTranslate2,
both in float32, with the weights of our T5.1.1, in the environment of PYTHON, which has
torch, transformers and ctranslate2 (what it lacks is left out). Every program has all
cores. Of each size all take turns, the round begun when `--seconds` are over being the
last: one of 32 rows with 4 beams, five of one row. The first, which compiles, is beside
these. Rates and their ratios are medians of the rounds. Remixer has as many parameters
as T5.1.1.
"""

import argparse
import functools
import json
import os
import statistics
import subprocess
import tempfile
import time

import numpy as np
import tensorflow as tf

from benchmarks.export import text_task
from remixer_tf import configuration
from remixer_tf.decoding import T5Rules, beam_search, greedy_decode
from remixer_tf.weights.to_hugging_face import export_hugging_face

MODELS = {
    "T5.1.1 small": ("t5_1_1_small", []),
    "Remixer small, equal parameters": ("remixer_small", ["D_FF = 853"]),
}
LENGTH = 64
# What rates are divided by: with whom a contestant of a name is compared.
GOALS = {
    "to CTranslate2 (goal 1)": lambda name: "ctranslate2",
    "to transformers (goal 1.5)": lambda name: "transformers",
    "to T5.1.1 (goal 0.91)": lambda name: name.replace(*reversed(MODELS)),
}
_ANCHORS = os.path.join(os.path.dirname(__file__), "decode_anchors.py")


def random_inputs(batch):
    inputs = np.random.default_rng(0).integers(2, 32000, (batch, LENGTH))
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

    def _make_graph(self, batch, beams):
        inputs = random_inputs(batch)
        graph = tf.function(
            lambda: search(self._model, inputs, beams), jit_compile=self._jit_compile
        )
        return graph.get_concrete_function()

    def seconds(self, batch, beams):
        start = time.perf_counter()
        self._graph(batch, beams)().numpy()
        return time.perf_counter() - start


class Anchors:
    """Other libraries, in a process of their own that waits for its turn."""

    def __init__(self, python, folder):
        self._process = subprocess.Popen(
            [python, _ANCHORS, folder, str(LENGTH)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{python} could not run {_ANCHORS}: see above.")
        self.names = json.loads(line)

    def seconds(self, name, batch, beams):
        print(name, LENGTH, batch, beams, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.wait()


def print_cache(models, rounds=3):
    print("| model | tokens/s with cache | without | cached/uncached | same tokens |")
    print("|---" * 5 + "|")
    batch = random_inputs(8)
    for name, model in models.items():
        functions = [
            tf.function(lambda m=model: search(m, batch, 1)),
            tf.function(lambda m=model: decode_without_cache(m, batch, LENGTH)),
        ]
        tokens = [function().numpy() for function in functions]
        seconds = [[], []]
        for _ in range(rounds):
            for function, times in zip(functions, seconds, strict=True):
                start = time.perf_counter()
                function().numpy()
                times.append(time.perf_counter() - start)
        cached, uncached = (8 * LENGTH / statistics.median(t) for t in seconds)
        print(
            f"| {name} | {cached:.0f} | {uncached:.0f} "
            f"| {cached / uncached:.1f} | {(tokens[0] == tokens[1]).mean():.1%} |",
            flush=True,
        )


def measure(contestants, batch, beams, seconds):
    """The first call of each, and rounds: dictionaries, name -> seconds."""
    first = {name: f(batch, beams) for name, f in contestants.items()}
    rounds = []
    while sum(sum(row.values()) for row in rounds) < seconds:
        rounds.append({name: f(batch, beams) for name, f in contestants.items()})
    return first, rounds


def print_rates(contestants, batches, beam_sizes, seconds):
    """Prints tokens/s, and how many times another's that is.

    Args:
        contestants: dictionary, name -> function of (batch, beams) that gives seconds.
        batches, beam_sizes: lists of ints.
        seconds: float, see `measure`.
    """
    columns = ["batch", "beams", "who", "tokens/s", *GOALS, "first call (s)"]
    print(f"\n| {' | '.join(columns)} |\n|---:|---:|---" + "|---:" * 5 + "|")
    for beams in beam_sizes:
        for batch in batches:
            first, rounds = measure(contestants, batch, beams, seconds)
            for name in contestants:
                rate = batch * LENGTH / statistics.median(row[name] for row in rounds)
                ratios = [ratio(rounds, name, find(name)) for find in GOALS.values()]
                print(
                    f"| {batch} | {beams} | {name} | {rate:.0f} "
                    f"| {' | '.join(ratios)} | {first[name]:.1f} |",
                    flush=True,
                )


def ratio(rounds, name, other):
    """How many times as fast as another one is, a str; "" where that did not run."""
    if other not in rounds[0] or other == name:
        return ""
    return f"{statistics.median(row[other] / row[name] for row in rounds):.2f}"


def write_for_anchors(model, folder):
    return export_hugging_face(model, text_task(), os.path.join(folder, "t5"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--beams", default="1,4")
    parser.add_argument("--anchors", metavar="PYTHON")
    parser.add_argument("--uncached", action="store_true")
    options = parser.parse_args()
    models = {}
    for name, (file, bindings) in MODELS.items():
        configuration.parse_gin([f"models/{file}.gin"], bindings)
        models[name] = configuration.call("EncoderDecoder")
        models[name].build()
    if options.uncached:
        print_cache(models)
    contestants = {
        f"{name}, XLA {'on' if jit_compile else 'off'}": Ours(
            model, jit_compile
        ).seconds
        for jit_compile in (True, False)
        for name, model in models.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        if options.anchors:
            path = write_for_anchors(next(iter(models.values())), folder)
            anchors = Anchors(options.anchors, path)
            for name in anchors.names:
                contestants[name] = functools.partial(anchors.seconds, name)
        sizes = (
            [int(n) for n in x.split(",")] for x in (options.batches, options.beams)
        )
        print_rates(contestants, *sizes, options.seconds)
        if options.anchors:
            anchors.close()


if __name__ == "__main__":
    main()
