"""The time to the first token after a long prompt, next to one forward call.

    [KERAS_BACKEND=jax] python -m benchmarks.first_token [--rounds=5] [--batches=1,8]
        [--models="T5;gMLP"] [--steps]

The prompt has 512 tokens. The forward call reads as many and computes all logits, as in
training. `short` has prompts of 40 tokens in a batch that is 512 wide. `by steps` reads
the prompt by one decoding step a token; with `--steps` alone, since it takes long, and
once. Language models of T5.1.1 small's size: eight layers of width 512, 32,000 pieces;
greedy, float32, compiled without XLA on TensorFlow.
"""

import argparse
import functools

import keras
import numpy as np
from keras import ops

from benchmarks.measure import median, print_header, print_row, ratio, take_turns
from remixer_tf.decoding import greedy_decode
from remixer_tf.layers import (
    GatedFeedForward,
    GatedMLP,
    MoE,
    RelativePositionBias,
    RemixerBlock,
    SelfAttention,
)
from remixer_tf.models import DecoderOnly, TransformerStack
from remixer_tf.testing import compiled

LENGTH, SHORT, VOCAB_SIZE = 512, 40, 32000
ATTENTION = {"self_attention": functools.partial(SelfAttention, num_heads=6, d_kv=64)}
MODELS = {
    "T5": {
        **ATTENTION,
        "feed_forward": functools.partial(GatedFeedForward, d_ff=1024),
    },
    "Remixer": {
        **ATTENTION,
        "remixer": functools.partial(RemixerBlock, d_ff=1024, residual="hidden"),
    },
    "gMLP": {"gmlp": functools.partial(GatedMLP, d_ff=3072)},
    "mixture, 8 experts": {
        **ATTENTION,
        "token_experts": functools.partial(MoE, num_experts=8, d_ff=1024, gated=True),
    },
}


class BySteps:
    """A model that reads a prompt token by token."""

    def __init__(self, model):
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def prefill(self, tokens, cache, context, state):
        def step(t, cache):
            token, here = ops.take(tokens, t, axis=1), state._replace(step=t)
            return t + 1, self._model.decode_step(token, cache, context, here)[1]

        start = ops.convert_to_tensor(0, "int32"), cache
        return ops.while_loop(lambda t, _: t < state.step, step, start)[1]


def make_model(sublayers):
    attends = "self_attention" in sublayers
    bias = functools.partial(RelativePositionBias, num_heads=6)
    stack = functools.partial(
        TransformerStack,
        sublayers,
        num_layers=8,
        position_bias=bias if attends else None,
        max_length=2 * LENGTH,
    )
    model = DecoderOnly(stack, VOCAB_SIZE, 512)
    model.build()
    return model


def program(function, model, name, tokens):
    """A function without arguments that runs compiled and waits for its result."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        function = tf.function(function, autograph=False)
    else:
        function = compiled(function, model)
    batch = {name: ops.convert_to_tensor(tokens)}
    return lambda: ops.convert_to_numpy(function(batch))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", default="1,8")
    parser.add_argument("--models", default=";".join(MODELS))
    parser.add_argument("--steps", action="store_true")
    options = parser.parse_args()
    columns = "forward (s)", "first token (s)", "ratio (goal 1.5)", "by steps", "short"
    print_header("engine", "model", "batch", *columns, "short by steps")
    for name in options.models.split(";"):
        model = make_model(MODELS[name])
        for batch in map(int, options.batches.split(",")):
            rng = np.random.default_rng(0)
            tokens = rng.integers(2, VOCAB_SIZE, (batch, LENGTH)).astype("int32")
            short = tokens * (np.arange(LENGTH) < SHORT).astype("int32")

            def first(reader, batch):
                return greedy_decode(reader, batch, 1, eos_id=-1).tokens

            read = functools.partial(first, model)
            contestants = {
                "forward": program(model, model, "decoder_input_tokens", tokens),
                "first": program(read, model, "encoder_input_tokens", tokens),
                "short": program(read, model, "encoder_input_tokens", short),
            }
            step = functools.partial(first, BySteps(model))
            by_steps = {
                "steps": program(step, model, "encoder_input_tokens", tokens),
                "short steps": program(step, model, "encoder_input_tokens", short),
            }
            times = dict.fromkeys(by_steps, "-")
            if options.steps:
                take_turns(by_steps, 1)  # They compile.
                rounds = take_turns(by_steps, 1)
                times = {key: f"{median(rounds, key):.3f}" for key in by_steps}
            take_turns(contestants, 1)
            rounds = take_turns(contestants, options.rounds)
            first_ratio = ratio(rounds, "first", "forward")
            times |= {key: f"{median(rounds, key):.3f}" for key in contestants}
            print_row(
                keras.backend.backend(),
                name,
                batch,
                times["forward"],
                times["first"],
                f"{first_ratio:.2f}",
                times["steps"],
                times["short"],
                times["short steps"],
            )


if __name__ == "__main__":
    main()
