"""What mixtures of experts cost: assignment, routing, dispatch.

    python -m benchmarks.mixtures [--rounds=7] [--experts=1,2,4,8,16] [--xla]

Times are a processor's, of one thread. First those of the balanced assignment, then
those of evaluation, where nothing is dropped, against computing every expert. Then
forward and backward of one layer of 4096 tokens, d_model 256, against the dense
feed-forward layer of the same FLOPs: experts are as wide as it (half, where a token has
two), the capacity factor is 1, and hidden layers are not gated. Layers take turns
within each round; the ratio to the dense one is the median over the rounds. The
router's share is its own time, the experts' that of their products on rows that lie
ready; the rest is dispatch. Last the spatial experts of sMLP's blocks, against gMLP's
block with one spatial gate.
"""

import argparse
import functools
import itertools
import statistics
import time

import numpy as np
import tensorflow as tf

from remixer_tf.layers import (
    BaseRouter,
    Context,
    ExpertsChooseRouter,
    FeedForward,
    GatedMLP,
    GShardRouter,
    HashRouter,
    MoE,
    SparseGatedMLP,
    SwitchRouter,
)
from remixer_tf.layers import mixture as mixtures
from remixer_tf.layers.assignment import assign_balanced
from remixer_tf.training.flops import matmul_flops

ROWS, LENGTH, D_MODEL, D_FF, VOCAB_SIZE = 8, 512, 256, 1024, 1000
TOKENS = ROWS * LENGTH
ROUTERS = {
    "switch": functools.partial(SwitchRouter, capacity_factor=1.0),
    "gshard": GShardRouter,
    "base": BaseRouter,
    "hash": functools.partial(HashRouter, capacity_factor=1.0, vocab_size=VOCAB_SIZE),
    "experts_choose": functools.partial(ExpertsChooseRouter, capacity_factor=1.0),
}


def inputs():
    """Tokens of a hidden state, and what a router reads beside them."""
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
    if mixture.dispatch == "dense":
        rows = TOKENS
    else:
        rows = groups * mixture.router.capacity(tokens)

    def route(x):
        routing = mixture.router(x, tokens=ids, token_mask=mask, training=True)
        return routing.gates

    def compute(rows):
        return mixture._apply_experts(rows, None, True)

    ready = tf.random.normal((mixture.num_experts, rows, D_MODEL))
    return (
        step_of(mixture.router, route, jit_compile, x)[0],
        step_of(mixture, compute, jit_compile, ready)[0],
    )


def seconds(step):
    """The processor's, of one thread: what a step takes if no other program runs."""
    start = time.process_time()
    tf.nest.flatten(step())[0].numpy()
    return time.process_time() - start


def print_assignment(rounds):
    print("| tokens assigned | experts | ms | ms with XLA |\n|---:|---:|---:|---:|")
    for tokens in (1024, 4096, 16384):
        affinities = tf.random.normal((tokens // 1024, 1024, 16))
        mask = tf.ones(affinities.shape[:2], tf.int32)
        cells = []
        for jit_compile in (False, True):
            assign = tf.function(assign_balanced, jit_compile=jit_compile)
            assign(affinities, mask)
            step = functools.partial(assign, affinities, mask)
            times = [seconds(step) for _ in range(rounds)]
            cells.append(f"{1e3 * statistics.median(times):.1f}")
        print(f"| {tokens} | 16 | {' | '.join(cells)} |", flush=True)


def print_evaluation(rounds):
    mixtures.FEW_TOKENS = 0  # Both ways, whichever the layer takes.
    print("| tokens evaluated | experts | ms, dropless | ms, every expert |")
    print("|---:" * 4 + "|")
    for tokens, experts in itertools.product((1, 64, 4096), (4, 8, 16)):
        x = tf.random.normal((tokens, 1, D_MODEL))
        steps = []
        for dispatch in ("gather", "dense"):
            layer = MoE(experts, D_FF, dispatch=dispatch)
            layer.build(x.shape)
            step = tf.function(functools.partial(layer, x, context=Context()))
            step()
            steps.append(step)
        times = [[seconds(step) for step in steps] for _ in range(rounds)]
        cells = [f"{1e3 * ms:.1f}" for ms in np.median(times, axis=0)]
        print(f"| {tokens} | {experts} | {' | '.join(cells)} |", flush=True)


def print_layers(rounds, experts, jit_compile):
    print(
        "| router | dispatch | experts | ms/step | ratio to dense | FLOPs/token (M) | "
        "router | dispatch | experts |"
    )
    print("|---|---|" + "---:|" * 7, flush=True)
    dense, flops = layer_step(FeedForward(D_FF, name="dense"), jit_compile)
    print(f"| (dense) | | | | 1.00 | {flops / TOKENS / 1e6:.2f} | | | |", flush=True)
    for name, router in ROUTERS.items():
        k = {"gshard": 2}.get(name, 1)
        # What these cost does not depend on the router.
        others = ("einsum", "dense") if name == "switch" else ()
        for dispatch in ("gather", *others):
            for number in experts:
                if number < k or (dispatch == "dense" and number > 8):
                    continue
                mixture = MoE(
                    number, D_FF // k, router, dispatch=dispatch, causal=False
                )
                step, flops = layer_step(mixture, jit_compile)
                steps = [dense, step, *part_steps(mixture, jit_compile)]
                for each in steps:
                    seconds(each)  # compiles
                times = [[seconds(each) for each in steps] for _ in range(rounds)]
                ratio = statistics.median(row[1] / row[0] for row in times)
                whole, route, compute = np.median(times, axis=0)[1:]
                shares = (route, whole - route - compute, compute)
                print(
                    f"| {name} | {dispatch} | {number} | {1e3 * whole:.0f} "
                    f"| {ratio:.2f} | {flops / TOKENS / 1e6:.2f} | "
                    + " | ".join(f"{share / whole:.0%}" for share in shares)
                    + " |",
                    flush=True,
                )


def print_spatial(rounds, experts, jit_compile):
    print("| spatial experts | number | ms/step | ratio to dense | FLOPs/token (M) |")
    print("|---|" + "---:|" * 4)
    dense, flops = layer_step(GatedMLP(D_FF, LENGTH, causal=True), jit_compile)
    print(f"| (one gate) | | | 1.00 | {flops / TOKENS / 1e6:.2f} |", flush=True)
    for routing, number in itertools.product(("deterministic", "partial"), experts):
        layer = SparseGatedMLP(D_FF, LENGTH, number, routing, causal=True)
        step, flops = layer_step(layer, jit_compile)
        for each in (dense, step):
            seconds(each)  # compiles
        times = [(seconds(dense), seconds(step)) for _ in range(rounds)]
        ratio = statistics.median(sparse / one for one, sparse in times)
        print(
            f"| {routing} | {number} | {1e3 * np.median(times, axis=0)[1]:.0f} "
            f"| {ratio:.2f} | {flops / TOKENS / 1e6:.2f} |",
            flush=True,
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
