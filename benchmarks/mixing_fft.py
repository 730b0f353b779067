"""Toeplitz mixing of tokens: the matrix product against the FFT.

    python -m benchmarks.mixing_fft [--rounds=3] [--causal]

The median of one call of `LengthMixing`, float32, batch 4, 512 channels, without
softmax; and of one call with the gradients of its input and weights.
"""

import argparse

import tensorflow as tf

from benchmarks.measure import median, print_header, print_row, take_turns
from remixer_tf.kernels import fft_product
from remixer_tf.layers import Context, LengthMixing

BATCH, CHANNELS = 4, 512
LENGTHS = (128, 256, 512, 1024, 2048, 4096)


def functions(layer, x, fft):
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

    fft_product.is_chosen = lambda length: fft  # asked while tracing
    forward(), backward()
    return forward, backward


def finished(function):
    """The function, which returns when its tensors are computed."""
    return lambda: tf.nest.map_structure(lambda t: t.numpy(), function())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--causal", action="store_true")
    options = parser.parse_args()
    columns = ("forward, dense", "FFT", "with backward, dense", "with backward, FFT")
    print_header("length", *(f"{column} (ms)" for column in columns))
    for length in LENGTHS:
        layer = LengthMixing(
            toeplitz=True, causal=options.causal, max_length=length, name="mixing"
        )
        layer.build((None, None, CHANNELS))
        x = tf.random.normal((BATCH, length, CHANNELS))
        dense = functions(layer, x, fft=False)
        fft = functions(layer, x, fft=True)
        steps = zip(columns, (dense[0], fft[0], dense[1], fft[1]), strict=True)
        times = take_turns(
            {name: finished(step) for name, step in steps}, options.rounds
        )
        print_row(length, *(f"{1e3 * median(times, name):.1f}" for name in columns))


if __name__ == "__main__":
    main()
