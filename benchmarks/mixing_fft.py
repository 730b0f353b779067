"""Toeplitz mixing of tokens: the matrix product against the FFT.

    python -m benchmarks.mixing_fft [--rounds=3] [--causal]

The median of one call of `LengthMixing`, float32, batch 4, 512 channels, without
softmax; and of one call with the gradients of its input and weights.
"""

import argparse
import statistics
import time

import tensorflow as tf

from remixer_tf.layers import Context, LengthMixing, length_mixing

BATCH, CHANNELS = 4, 512
LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def functions(layer, x, fft_from):
    """The forward pass, and forward and backward, traced."""

    @tf.function
    def forward():
        return layer(x, context=Context())

    @tf.function
    def backward():
        weight = layer.mixing_matrix.value
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(layer(x, context=Context())))
        return tape.gradient(loss, [x, weight])

    length_mixing.FFT_FROM_LENGTH = fft_from  # read while tracing
    forward(), backward()
    return forward, backward


def milliseconds(function, rounds):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        tf.nest.map_structure(lambda t: t.numpy(), function())
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--causal", action="store_true")
    options = parser.parse_args()
    print("| length | forward, dense | FFT | with backward, dense | FFT |   (ms)")
    print("|---" * 5 + "|")
    for length in LENGTHS:
        layer = LengthMixing(
            length, toeplitz=True, causal=options.causal, name="mixing"
        )
        layer.build((None, None, CHANNELS))
        x = tf.random.normal((BATCH, length, CHANNELS))
        dense = functions(layer, x, fft_from=length + 1)
        fft = functions(layer, x, fft_from=1)
        row = [milliseconds(f, options.rounds) for f in (dense[0], fft[0])]
        row += [milliseconds(f, options.rounds) for f in (dense[1], fft[1])]
        print(f"| {length} | " + " | ".join(f"{ms:.1f}" for ms in row) + " |")


if __name__ == "__main__":
    main()
