"""The cost of mixtures of experts: assignment, routing, moving tokens.

    python -m benchmarks.mixtures [--rounds=7] [--experts=1,2,4,8,16] [--xla]

Times are processor times of one thread. The tables, in order:

- the balanced assignment;
- evaluation, where nothing is dropped, compared with computing every expert;
- forward and backward of one layer of 4096 tokens, d_model 256, compared with the dense
  feed-forward layer of the same FLOPs;
- the spatial experts of sMLP's blocks, compared with gMLP's block with one gate.

In the third, experts are as wide as the dense layer, or half as wide where a token has
two. The capacity factor is 1, and hidden layers are not gated. Layers take turns within
each round; the ratio to the dense layer is the median over the rounds. The router's
share is its own time. The experts' share is their products on rows that lie ready; the
rest moves tokens.
"""

import argparse
import functools
import itertools
import time

import numpy as np
import tensorflow as tf

from benchmarks.measure import median, print_header, print_row, ratio, take_turns
from remixer_tf.engines.tensorflow.flops import matmul_flops
from remixer_tf.layers import (
    BaseRouter,
    Context,
    FeedForward,
    GatedMLP,
    GShardRouter,
    HashRouter,
    MoE,
    SparseSpatialGate,
    SwitchRouter,
)
from remixer_tf.layers.assignment import assign_balanced

ROWS, LENGTH, D_MODEL, D_FF, VOCAB_SIZE = 8, 512, 256, 1024, 1000
TOKENS = ROWS * LENGTH
ROUTERS = {
    "switch": functools.partial(SwitchRouter, capacity_factor=1.0),
    "gshard": GShardRouter,
    "base": BaseRouter,
    "hash": functools.partial(HashRouter, capacity_factor=1.0, vocab_size=VOCAB_SIZE),
}


def inputs():
    """Returns a hidden state and the token ids, which some routers read."""
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(ROWS, LENGTH, D_MODEL)), tf.float32)
    ids = tf.constant(rng.integers(0, VOCAB_SIZE, (ROWS, LENGTH)), tf.int32)
    return x, Context(tokens=ids, token_mask=tf.ones_like(ids))


def step_of(layer, call, jit_compile, *arguments):
    """A traced function without arguments: outputs, and gradients of all."""

    @tf.function(jit_compile=jit_compile)
    def step(*arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments[0])
            loss = tf.reduce_sum(tf.square(call(*arguments)))
        weights = [variable.value for variable in layer.trainable_variables]
        gradients = tape.gradient(loss, [arguments[0], *weights])
        return [loss, *(g for g in gradients if g is not None)]

    flops = matmul_flops(step.get_concrete_function(*arguments))
    return functools.partial(step, *arguments), flops


def layer_step(layer, jit_compile):
    """The step of a whole sublayer, and its FLOPs."""
    layer.build((None, None, D_MODEL))
    x, context = inputs()

    def call(x):
        return layer(x, context=context, training=True)

    return step_of(layer, call, jit_compile, x)


def part_steps(mixture, jit_compile):
    """The steps of a built mixture's router and of its experts alone."""
    x, context = inputs()
    x = mixture._group(x)
    ids, mask = mixture._group(context.tokens), mixture._group(context.token_mask)
    groups, tokens, _ = x.shape
    rows = groups * mixture.router.capacity(tokens)

    def route(x):
        routing = mixture.router(x, tokens=ids, token_mask=mask, training=True)
        return routing.gates

    def compute(rows):
        return mixture._apply_experts([*mixture.wi, mixture.wo], True, rows, None)

    ready = tf.random.normal((mixture.num_experts, rows, D_MODEL))
    return (
        step_of(mixture.router, route, jit_compile, x)[0],
        step_of(mixture, compute, jit_compile, ready)[0],
    )


def measure(steps, rounds):
    """`take_turns` on the clock of the processor.

    With one thread, that is what a step takes if no other program runs.
    """
    finished = {
        name: lambda step=step: tf.nest.flatten(step())[0].numpy()
        for name, step in steps.items()
    }
    take_turns(finished, 1)  # compiles
    return take_turns(finished, rounds, time.process_time)


def milliseconds(rounds, name):
    return f"{1e3 * median(rounds, name):.1f}"


def print_assignment(rounds):
    print_header("tokens assigned", "experts", "ms", "ms with XLA")
    for tokens in (1024, 4096, 16384):
        affinities = tf.random.normal((tokens // 1024, 1024, 16))
        mask = tf.ones(affinities.shape[:2], tf.int32)
        steps = {
            xla: functools.partial(
                tf.function(assign_balanced, jit_compile=xla), affinities, mask
            )
            for xla in (False, True)
        }
        times = measure(steps, rounds)
        print_row(tokens, 16, *(milliseconds(times, xla) for xla in steps))


def by_every_expert(layer, x):
    """The outputs of every expert, the choices of which are added up."""
    routing = layer.router(x, tokens=None, token_mask=None)
    rows = tf.broadcast_to(tf.squeeze(x, 1), (layer.num_experts, len(x), D_MODEL))
    y = layer._apply_experts([*layer.wi, layer.wo], False, rows, None)
    gates = routing.gates * tf.one_hot(routing.experts[..., 0], layer.num_experts)
    return tf.einsum("te,etd->td", gates[:, 0], y)


def print_evaluation(rounds):
    print_header("tokens evaluated", "experts", "ms, dropless", "ms, every expert")
    for tokens, experts in itertools.product((1, 64, 4096), (4, 8, 16)):
        x = tf.random.normal((tokens, 1, D_MODEL))
        layer = MoE(experts, D_FF)
        layer.build(x.shape)
        steps = {
            "dropless": functools.partial(layer, x, context=Context()),
            "every": functools.partial(by_every_expert, layer, x),
        }
        steps = {name: tf.function(step) for name, step in steps.items()}
        times = measure(steps, rounds)
        print_row(tokens, experts, *(milliseconds(times, name) for name in steps))


def print_layers(rounds, experts, jit_compile):
    print_header(
        "router",
        "experts",
        "ms/step",
        "ratio to dense",
        "FLOPs/token (M)",
        "router's share",
        "moving",
        "experts'",
    )
    dense, flops = layer_step(FeedForward(D_FF, name="dense"), jit_compile)
    print_row("(dense)", "", "", "1.00", f"{flops / TOKENS / 1e6:.2f}", "", "", "")
    for name, router in ROUTERS.items():
        k = {"gshard": 2}.get(name, 1)
        for number in experts:
            if number < k:
                continue
            mixture = MoE(number, D_FF // k, router)
            step, flops = layer_step(mixture, jit_compile)
            route, compute = part_steps(mixture, jit_compile)
            steps = {"dense": dense, "all": step, "route": route, "compute": compute}
            times = measure(steps, rounds)
            whole, *parts = (median(times, key) for key in ("all", "route", "compute"))
            shares = (parts[0], whole - sum(parts), parts[1])
            print_row(
                name,
                number,
                f"{1e3 * whole:.0f}",
                f"{ratio(times, 'all', 'dense'):.2f}",
                f"{flops / TOKENS / 1e6:.2f}",
                *(f"{share / whole:.0%}" for share in shares),
            )


def print_spatial(rounds, experts, jit_compile):
    print_header(
        "spatial experts", "number", "ms/step", "ratio to one gate", "FLOPs/token (M)"
    )
    of_stack = {"causal": True, "max_length": LENGTH}
    dense, flops = layer_step(GatedMLP(D_FF, **of_stack), jit_compile)
    print_row("(one gate)", "", "", "1.00", f"{flops / TOKENS / 1e6:.2f}")
    for routing, number in itertools.product(("deterministic", "partial"), experts):
        gate = functools.partial(SparseSpatialGate, number, routing)
        layer = GatedMLP(D_FF, gate, **of_stack)
        step, flops = layer_step(layer, jit_compile)
        times = measure({"dense": dense, "sparse": step}, rounds)
        print_row(
            routing,
            number,
            f"{1e3 * median(times, 'sparse'):.0f}",
            f"{ratio(times, 'sparse', 'dense'):.2f}",
            f"{flops / TOKENS / 1e6:.2f}",
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--experts", default="1,2,4,8,16")
    parser.add_argument("--xla", action="store_true")
    options = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    print_assignment(options.rounds)
    print()
    print_evaluation(options.rounds)
    print()
    experts = [int(number) for number in options.experts.split(",")]
    print_layers(options.rounds, experts, options.xla)
    print()
    print_spatial(options.rounds, experts, options.xla)


if __name__ == "__main__":
    main()
