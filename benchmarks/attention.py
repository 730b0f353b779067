"""This package's attention against `keras.ops.dot_product_attention`, with a bias.

    KERAS_BACKEND=jax python -m benchmarks.attention [--rounds=7]

From queries, keys and values `[batch, length, heads, d_kv]` and a bias
`[1, heads, length, length]` to the mixed values: 6 heads of 64, as T5.1.1 small has,
2,048 tokens at every length, no dropout. The gradient is that of all four. Both take
turns; times are those of the CPU, and the ratio is the median over the rounds.
"difference" is the largest of outputs or gradients, over the largest number of each.
"""

import argparse
import time

import keras
import numpy as np
from keras import ops

from benchmarks.measure import median, print_header, print_row, ratio, take_turns
from remixer_tf.kernels.scores import scores
from remixer_tf.layers.base import read_cache

LENGTHS, TOKENS, HEADS, D_KV = (128, 512, 1024), 2048, 6, 64
DTYPES = ("float32", "bfloat16")


def ours(query, key, value, bias):
    """The part of `SelfAttention` between its projections."""
    query, key, value = (ops.transpose(x, (0, 2, 1, 3)) for x in (query, key, value))
    logits = ops.cast(scores(query, key), "float32") + ops.cast(bias, "float32")
    weights = ops.cast(ops.softmax(logits), value.dtype)
    return ops.transpose(read_cache(weights, value), (0, 2, 1, 3))


def of_keras(query, key, value, bias):
    """The same by Keras; T5 has no 1 / sqrt(d_kv)."""
    return ops.dot_product_attention(query, key, value, bias=bias, scale=1.0)


def forward(attention):
    """The compiled function of four tensors, as a list of one."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(lambda *x: [attention(*x)])
    import tensorflow as tf

    return tf.function(lambda *x: [attention(*x)])


def with_gradient(attention):
    """The compiled gradients of the sum of squares, for each of four tensors."""
    if keras.backend.backend() == "jax":
        import jax

        def loss(*x):
            return ops.sum(ops.square(ops.cast(attention(*x), "float32")))

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
    import tensorflow as tf

    @tf.function
    def gradients(*x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = attention(*x)
            loss = tf.reduce_sum(tf.square(tf.cast(y, "float32")))
        return tape.gradient(loss, x)

    return gradients


def difference(values, others):
    """The largest difference of lists of tensors, over the largest number of each."""
    values, others = (
        [np.array(ops.cast(x, "float32")) for x in given] for given in (values, others)
    )
    return max(
        np.abs(x - y).max() / np.abs(x).max()
        for x, y in zip(values, others, strict=True)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    columns = ("dtype", "length", "pass", "ours (ms)", "Keras (ms)", "Keras / ours")
    print_header("engine", *columns, "difference")
    for dtype in DTYPES:
        for length in LENGTHS:
            shape = (TOKENS // length, length, HEADS, D_KV)
            shapes = (shape, shape, shape, (1, HEADS, length, length))
            scales = (D_KV**-0.5, 1.0, 1.0, 1.0)
            inputs = [
                ops.convert_to_tensor(scale * rng.normal(size=shape), dtype)
                for scale, shape in zip(scales, shapes, strict=True)
            ]
            for name, make in (("forward", forward), ("gradient", with_gradient)):
                made = {"ours": make(ours), "Keras": make(of_keras)}
                found = [function(*inputs) for function in made.values()]

                def timed(function, inputs=inputs):
                    return lambda: [np.array(x[:1, :1]) for x in function(*inputs)]

                contestants = {name: timed(f) for name, f in made.items()}
                times = take_turns(contestants, options.rounds, time.process_time)
                print_row(
                    keras.backend.backend(),
                    dtype,
                    length,
                    name,
                    *(f"{1e3 * median(times, n):.0f}" for n in contestants),
                    f"{ratio(times, 'Keras', 'ours'):.2f}",
                    f"{difference(*found):.1e}",
                )


if __name__ == "__main__":
    main()
