"""Decoding speed where answers are of different lengths, next to other libraries.

    python -m benchmarks.answer_lengths [--batches=8,32] [--rounds=5] [--each=4]
        [--anchors=PYTHON]

Lengths are geometric, of mean 24, at least 2 and at most 64 tokens, EOS included. All
programs write the same answers to the same questions: weights of T5.1.1 small are such
that a question says how long its answer is, and the answer counts down to EOS. So each
program ends rows as it does with any model. All other products are computed too, with
weights that are random or 0.

Ours is compiled by XLA. In a list, as `generate` and `infer` take it, a question takes
the place of an answer that has ended. In batches all wait for the longest answer, but
for `halvings` (see `decode`), as in an evaluation. A turn decodes `--each` batches, one
after the other, or as one list; all programs take turns. Rates are of tokens, EOS
included, the medians of the rounds; so are ratios. CPU seconds say more than seconds
where other programs run. For the anchors see `benchmarks.decode`.
"""

import argparse
import contextlib
import tempfile
import time

import numpy as np
import tensorflow as tf

from benchmarks.decode import LENGTH, Anchor, write_for_anchors
from benchmarks.machine import print_machine
from benchmarks.measure import print_header, print_row
from remixer_tf import configuration
from remixer_tf.decoding import greedy_decode
from remixer_tf.decoding.search import HALVINGS
from remixer_tf.models import EncoderDecoder
from remixer_tf.serving.continuous import ContinuousSearch
from remixer_tf.serving.places import answer_list
from remixer_tf.serving.token_graph import TokenGraph

MEAN = 24
QUESTION, ANSWER = 1000, 100  # ids: plus the tokens that are wanted, or are left
LISTED = "ours, a list"
HALVED = "ours, halvings=2"
TOGETHER = "ours, halvings=0"


def answer_lengths(rows, seed):
    """Geometric lengths of answers, int `[rows]`."""
    drawn = np.random.default_rng(seed).geometric(1 / MEAN, rows)
    return np.clip(drawn, 2, LENGTH)


def questions(lengths):
    """Questions with answers of these lengths, int32 `[rows, LENGTH]`."""
    tokens = np.repeat(QUESTION + np.asarray(lengths)[:, None], LENGTH, axis=1)
    return tokens.astype("int32")


def teach(model, words=range(QUESTION, QUESTION + LENGTH + 1)):
    """Gives an `EncoderDecoder` of T5.1.1 weights that answer as above.

    `words[n]` is the id of which a question consists whose answer has n tokens.

    No sublayer adds to the residual stream but the decoder's first cross-attention,
    which adds a tenth of the question. So the logits see the last token, and the
    question where there is none.
    """
    named = {variable.path.split("/", 1)[1]: variable for variable in model.variables}
    for path, variable in named.items():
        if path.endswith(("out/kernel", "wo/kernel")):
            variable.assign(np.zeros(variable.shape))
    embedding = np.random.default_rng(0).normal(size=named[EMBEDDING].shape)
    embedding[0] = 0  # the decoder's first input
    named[EMBEDDING].assign(embedding)
    value, out = (named[f"{READS}/{name}/kernel"] for name in ("value", "out"))
    value.assign(np.eye(*value.shape))
    out.assign(0.1 * np.eye(*out.shape))
    seen = value.shape[1]
    logits = np.zeros(named["logits/kernel"].shape)
    for left in range(1, LENGTH + 1):
        token = 1 if left == 1 else ANSWER + left
        logits[:, token] = embedding[ANSWER + left + 1]
        logits[:seen, token] += embedding[words[left], :seen]
    named["logits/kernel"].assign(logits)


EMBEDDING = "token_embedding/embeddings"
READS = "decoder/layer_0_cross_attention/cross_attention"


class Ours:
    """A model's greedy decoding, compiled by XLA."""

    def __init__(self, model, halvings):
        def search(batch):
            return greedy_decode(model, {**batch, HALVINGS: halvings}, LENGTH).tokens

        self._search = tf.function(search, jit_compile=True, autograph=False)

    def decode(self, lengths):
        """Returns the CPU time that it took, in seconds."""
        start = time.process_time()
        batch = {"encoder_input_tokens": tf.constant(questions(lengths))}
        tokens = self._search(batch).numpy()
        taken = time.process_time() - start
        np.testing.assert_array_equal(np.count_nonzero(tokens, axis=1), lengths)
        return taken


class OursListed:
    """A model's greedy decoding of a list, the turns compiled by XLA."""

    def __init__(self, model):
        tokens = TokenGraph(model, input_length=LENGTH, max_length=LENGTH)
        self._search = ContinuousSearch(model, tokens, [LENGTH], {})

    def decode(self, lengths, rows):
        """As `Ours.decode`; so many rows are written together."""
        start = time.process_time()
        found = answer_list(self._search, questions(lengths), {}, rows, xla=True)
        taken = time.process_time() - start
        np.testing.assert_array_equal(np.count_nonzero(found.tokens, axis=1), lengths)
        return taken


def one_by_one(decode):
    """A function of a list of batches, of one of a batch; returns the sum."""
    return lambda batches: sum(decode(lengths) for lengths in batches)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", default="8,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--anchors", metavar="PYTHON")
    options = parser.parse_args()
    print_machine(options.anchors)
    read = configuration.read(["models/t5_1_1_small.gin"], [])
    model = read.call(EncoderDecoder)
    model.build()
    teach(model)
    listed = OursListed(model).decode
    contestants = {
        LISTED: lambda batches: listed(np.concatenate(batches), len(batches[0])),
        HALVED: one_by_one(Ours(model, 2).decode),
        TOGETHER: one_by_one(Ours(model, 0).decode),
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as anchors:
        if options.anchors:
            path = write_for_anchors(model, folder)
            for name in ("ctranslate2", "transformers"):
                anchor = Anchor(options.anchors, path, name)
                anchors.callback(anchor.close)
                if anchor.starts:
                    contestants[name] = one_by_one(anchor.answer)
        print_header(
            *("batch", "who", "tokens/s", "tokens/CPU s", f"{LISTED}/this", "by CPU"),
            "first round (CPU s)",
        )
        for rows in map(int, options.batches.split(",")):
            print_rates(contestants, rows, options.rounds, options.each)


def print_rates(contestants, rows, rounds, each):
    """Prints the rates of all contestants for batches of so many rows."""
    batches = [answer_lengths(rows, seed) for seed in range(each)]
    tokens = sum(lengths.sum() for lengths in batches)
    taken, first = {name: [] for name in contestants}, {}
    for number in range(rounds + 1):  # The first compiles.
        for name, decode in contestants.items():
            start = time.perf_counter()
            cpu = decode(batches)
            if number == 0:
                first[name] = cpu
            else:
                taken[name].append((time.perf_counter() - start, cpu))
    ours = np.array(taken[LISTED])
    for name, seconds in taken.items():
        rates = tokens / np.median(seconds, axis=0)
        ratios = np.median(np.array(seconds) / ours, axis=0)
        print_row(
            rows,
            name,
            *(f"{rate:.0f}" for rate in rates),
            *(f"{ratio:.2f}" for ratio in ratios),
            f"{first[name]:.0f}",
        )


if __name__ == "__main__":
    main()
