"""Decoding speed with and without the cache.

    python -m benchmarks.decode [--rounds=3]

Greedy decoding of 64 tokens, batch 8, inputs of 128 tokens. Without the cache, the
whole decoder runs over all positions for every new token.
"""

import argparse
import statistics
import time

import numpy as np
import tensorflow as tf

from remixer_tf import configuration
from remixer_tf.decoding import greedy_decode

MODELS = ("models/t5_1_1_small.gin", "models/remixer_small.gin")
BATCH, INPUTS, TARGETS = 8, 128, 64


def decode_without_cache(model, batch, max_length):
    """Greedy tokens `[batch, max_length]`, by one full pass for each position."""
    context = model.encode(batch)
    tokens = tf.zeros((BATCH, max_length), tf.int32)

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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    inputs = np.random.default_rng(0).integers(2, 32100, (BATCH, INPUTS))
    batch = {"encoder_input_tokens": tf.constant(inputs, tf.int32)}
    print("| model | tokens/s with cache | without | cached/uncached | same tokens |")
    print("|---" * 5 + "|")
    for file in MODELS:
        configuration.parse_gin([file], [])
        model = configuration.call("EncoderDecoder")
        model.build()
        # No token ends a row, so that both decode all positions.
        functions = [
            tf.function(lambda m=model: greedy_decode(m, batch, TARGETS, -1).tokens),
            tf.function(lambda m=model: decode_without_cache(m, batch, TARGETS)),
        ]
        tokens = [function().numpy() for function in functions]
        seconds = [[], []]
        for _ in range(options.rounds):
            for function, times in zip(functions, seconds, strict=True):
                start = time.perf_counter()
                function().numpy()
                times.append(time.perf_counter() - start)
        cached, uncached = (BATCH * TARGETS / statistics.median(t) for t in seconds)
        print(
            f"| {file.split('/')[1][:-4]} | {cached:.0f} | {uncached:.0f} "
            f"| {cached / uncached:.1f} | {(tokens[0] == tokens[1]).mean():.1%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
