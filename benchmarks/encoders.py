"""The encoders' training step against T5.1.1's, as sequences grow.

    python -m benchmarks.encoders [--rounds=3]

Forward and backward of four layers of each encoder at T5.1.1 small's width, float32,
2,048 tokens a step at every length. D_FF is chosen so that each encoder has as many
parameters as T5.1.1's, those left out that grow with the length (mixing matrices, the
weights of token MLPs); the table tells all. Encoders take turns; the
ratio is the median over the rounds.
"""

import argparse
import math

import tensorflow as tf

from benchmarks.machine import print_machine
from benchmarks.measure import median, print_header, print_row, ratio, take_turns
from remixer_tf import configuration
from remixer_tf.engines.tensorflow.flops import matmul_flops
from remixer_tf.layers import Context
from remixer_tf.models import EncoderDecoder, TransformerStack
from remixer_tf.models.build import declare

LENGTHS, TOKENS, LAYERS = (128, 512, 2048), 2048, 4
BASE = "T5.1.1"
# A gin file, and what differs from it.
ENCODERS = {
    BASE: ("architectures/t5_1_1.gin", []),
    "Remixer": ("architectures/remixer.gin", []),
    "Remixer, Toeplitz": (
        "architectures/remixer.gin",
        ["RemixerBlock.toeplitz = True"],
    ),
    "gMLP": ("architectures/gmlp.gin", ["SpatialGatingUnit.toeplitz = False"]),
    "gMLP, Toeplitz": ("architectures/gmlp.gin", []),
    "aMLP, Toeplitz": ("architectures/amlp.gin", []),
    "Mixer": ("architectures/mixer_encoder.gin", ["D_TOKENS = 512"]),
}


def make_encoder(name, length, d_ff):
    """A built encoder of sequences up to `length`."""
    file, bindings = ENCODERS[name]
    sizes = [f"NUM_ENCODER_LAYERS = {LAYERS}", f"D_FF = {d_ff}"]
    if name != BASE:
        sizes.append(f"MAX_LENGTH = {length}")
    files = ["models/t5_1_1_small.gin", file]
    settings = configuration.read(files, [*sizes, *bindings])
    encoder = settings.bound(TransformerStack, scope="encoder")(name="encoder")
    encoder.build((None, None, settings.value(EncoderDecoder, "d_model")))
    return encoder


def count(name, length, d_ff):
    """An encoder's parameters, without making them."""
    encoder = declare(lambda: make_encoder(name, length, d_ff))
    return sum(math.prod(v.shape) for v in encoder.trainable_variables)


def equal_width(name, parameters):
    """The D_FF with so many parameters, which grow linearly with it."""
    few, more = (count(name, 1, d_ff) for d_ff in (16, 32))
    return 16 + round((parameters - few) / (more - few)) * 16


def make_step(encoder, x):
    """A function that runs forward and backward, and its matmul FLOPs."""
    values = [v.value for v in encoder.trainable_variables]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, _ = encoder(x, context=Context(), training=True)
            loss = tf.reduce_sum(tf.square(y))
        gradients = tape.gradient(loss, [x, *values])
        return tf.add_n([tf.reduce_sum(gradient) for gradient in gradients])

    step()  # compiles
    flops = matmul_flops(step.get_concrete_function())
    return lambda: step().numpy(), flops


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    d_ff = 1024  # T5.1.1 small's
    parameters = count(BASE, 1, d_ff)
    widths = {name: equal_width(name, parameters) for name in ENCODERS}
    widths[BASE] = d_ff
    print_machine()
    print_header(
        "encoder",
        "D_FF",
        "length",
        "parameters (M)",
        "GFLOP/step",
        "ms/step",
        "ratio to T5.1.1",
        "ratio to length 128",
    )
    shortest = {}
    for length in LENGTHS:
        made = {}
        for name, width in widths.items():
            encoder = make_encoder(name, length, width)
            x = tf.random.normal((TOKENS // length, length, 512))
            size = sum(math.prod(v.shape) for v in encoder.trainable_variables)
            made[name] = (*make_step(encoder, x), size)
        steps = {name: step for name, (step, *_) in made.items()}
        times = take_turns(steps, options.rounds)
        for name, (_, flops, size) in made.items():
            milliseconds = 1e3 * median(times, name)
            shortest.setdefault(name, milliseconds)
            print_row(
                name,
                widths[name],
                length,
                f"{size / 1e6:.2f}",
                f"{flops / 1e9:.0f}",
                f"{milliseconds:.0f}",
                f"{ratio(times, name, BASE):.2f}",
                f"{milliseconds / shortest[name]:.2f}",
            )


if __name__ == "__main__":
    main()
