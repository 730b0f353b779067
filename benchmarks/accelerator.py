"""Training on one accelerator, by JAX: where the time of a step goes.

    KERAS_BACKEND=jax python -m benchmarks.accelerator [--tables=rates,models,...]

Needs Keras, JAX and gin, and no TensorFlow. Steps are the engine's own
(`remixer_tf.engines.jax.step`). The tables:

    rates    bfloat16 matrix products and copies: the ceilings of this device
    models   T5.1.1 and Remixer, T5's pre-training lengths, several batches
    parts    a step of T5.1.1 base and of Remixer base taken apart
    calls    steps in one call (`lax.scan`)
    logits   logits and loss over all pieces, whole and in chunks of the targets
    remat    what training keeps for the gradient: see `TransformerStack.remat`
    options  a step under options of the compiler, one at a time
    mixing   Toeplitz mixing by the FFT and by the dense product

Weights are float32, compute is bfloat16, the optimizer is Adafactor, the dropout 0, and
rows are full. FLOPs count the matrix products, backward pass included, from the
program's shapes. "Share" is relative to the rate of the device's own square product in
this run. Bytes are the compiled program's peak. If a batch does not fit the device's
memory, its row says so, and larger batches are skipped.

With --tiny, models and sizes are so small that a CPU prints every table within two
minutes, which says nothing of speed.
"""

import argparse
import sys
import time
import traceback
from typing import NamedTuple

import gin
import jax
import keras
from jax import lax
from jax import numpy as jnp

from benchmarks.accelerator_measures import (
    Program,
    copy_rate,
    leave_out,
    make_model,
    matmul_rate,
    median_seconds,
    not_measured,
    out_of_memory,
    random_batch,
    training,
)
from benchmarks.accelerator_sizes import FULL, OPTIONS, TINY, VOCAB_SIZE
from benchmarks.measure import print_header, print_row
from remixer_tf import layers, models
from remixer_tf.engines.jax.flops import program_bytes
from remixer_tf.kernels import fft_product
from remixer_tf.models.stack import TransformerStack
from remixer_tf.objectives import losses


def superbatch(sizes, steps, batch):
    return random_batch(steps, batch, sizes.inputs, sizes.targets, VOCAB_SIZE)


def named_model(name):
    gin_file, bindings, _ = {**FULL.models, **TINY.models}[name]
    return make_model(gin_file, *bindings)


def measure(what, function, state, batch, options=None):
    """Returns the `Program`, its seconds a step, and the state; says if it has no room.

    Returns:
        None where the device's memory is too small. The state may be gone then.
    """
    try:
        program = Program(function, state, batch, options)
        return program, *program.measure(state)
    except jax.errors.JaxRuntimeError as error:
        if not out_of_memory(error):
            raise
    leave_out(what, "does not fit")
    return None


class Cost(NamedTuple):
    """The figures of a `Program`, kept after the program is freed."""

    flops: int
    bytes: int
    compiling: float


def each_batch(what, model, batches, sizes, steps):
    """Measures training with ever larger batches, until one does not fit.

    Yields:
        (the batch's rows, `Cost`, seconds a step).
    """
    train, state = training(model)
    for size in batches:
        batch = superbatch(sizes, steps, size)
        measured = measure(f"{what}, batch {size}", train, state, batch)
        if measured is None:
            return
        program, seconds, state = measured
        cost = Cost(program.flops, program.bytes, program.compiling)
        del program, measured  # Its memory is for the next.
        yield size, cost, seconds


def rate_cells(sizes, flops, seconds):
    rate = matmul_rate(sizes.product)
    return f"{flops / seconds / 1e12:.2f}", f"{flops / seconds / rate:.1%}"


def print_rates(sizes):
    print_header("what", "rate")
    rate = matmul_rate(sizes.product)
    print_row(f"bfloat16 product, {sizes.product}", f"{rate / 1e12:.2f} TFLOP/s")
    print_row("copy, read and written", f"{copy_rate(sizes.copy) / 1e12:.2f} TB/s")


def print_models(sizes, steps=4):
    print_header(
        "model",
        "batch",
        "parameters (M)",
        "ms/step",
        "sequences/s",
        "tokens/s",
        "GFLOP/sequence",
        "TFLOP/s",
        "share",
        "GB",
        "compiling (s)",
    )
    for name in sizes.models:
        model = named_model(name)
        _, _, batches = sizes.models[name]
        for size, cost, seconds in each_batch(name, model, batches, sizes, steps):
            print_row(
                name,
                size,
                f"{model.count_params() / 1e6:.2f}",
                f"{1e3 * seconds:.1f}",
                f"{size / seconds:.0f}",
                f"{size * (sizes.inputs + sizes.targets) / seconds:,.0f}",
                f"{cost.flops / size / 1e9:.1f}",
                *rate_cells(sizes, cost.flops, seconds),
                f"{cost.bytes / 1e9:.2f}",
                f"{cost.compiling:.0f}",
            )
        del model


def parts_of(model):
    """Yields (name, function of a superbatch) of ever more of a step."""

    def logits(trainable, non_trainable, batch):
        y, _ = model.stateless_call(trainable, non_trainable, batch, training=True)
        return y

    def loss(trainable, non_trainable, batch):
        y = logits(trainable, non_trainable, batch)
        sums = losses.CrossEntropy(z_loss=1e-4).sums(y, batch)
        return sums["objective"] / sums["weight"]

    def gradients(trainable, non_trainable, batch):
        value, found = jax.value_and_grad(loss)(trainable, non_trainable, batch)
        # All are used.
        return value + 0 * sum(jnp.sum(gradient) for gradient in found)

    for part in (logits, loss, gradients):

        def scan(state, batch, part=part):
            def step(state, batch):
                value = part(state.trainable, state.non_trainable, batch)
                return state, jnp.sum(value)

            return lax.scan(step, state, batch)

        yield part.__name__, scan


def print_parts(sizes, steps=4):
    print_header("model", "what", "ms", "TFLOP/s", "share")
    for name in sizes.parts:
        model = named_model(name)
        train, state = training(model)
        batch = superbatch(sizes, steps, sizes.middle)
        for part, function in [*parts_of(model), ("step", train)]:
            measured = measure(f"{name}, {part}", function, state, batch)
            if measured is None:
                break
            program, seconds, state = measured
            rates = rate_cells(sizes, program.flops, seconds)
            print_row(name, part, f"{1e3 * seconds:.1f}", *rates)
        del train, state, model


def print_calls(sizes):
    print_header("steps in a call", "ms/step", "compiling (s)")
    train, state = training(named_model(sizes.calls))
    for steps in sizes.scans:
        batch = superbatch(sizes, steps, sizes.middle)
        measured = measure(f"{steps} steps in a call", train, state, batch)
        if measured is None:
            break
        program, seconds, state = measured
        print_row(steps, f"{1e3 * seconds:.2f}", f"{program.compiling:.0f}")


def print_logits(sizes):
    """Prints the cost of float32 logits and loss, with their gradients."""
    print_header("chunks", "ms", "GB")
    keys = jax.random.split(jax.random.key(0), 3)
    rows = sizes.middle * sizes.targets
    hidden = jax.random.normal(keys[0], (rows, sizes.d_model))
    kernel = jax.random.normal(keys[1], (sizes.d_model, VOCAB_SIZE)) * 0.02
    targets = jax.random.randint(keys[2], (rows,), 2, VOCAB_SIZE)

    def loss(kernel, hidden, targets):
        weights = jnp.ones_like(targets)
        sums = losses.cross_entropy(hidden @ kernel, targets, weights, z_loss=1e-4)
        return sums["loss"] + sums["z_loss"]

    for chunks in sizes.chunks:

        def chunked(kernel, hidden, chunks=chunks):
            if chunks == 1:
                return loss(kernel, hidden, targets)

            def add(total, part):
                return total + jax.checkpoint(loss)(kernel, *part), None

            parts = hidden, targets
            parts = [x.reshape(chunks, -1, *x.shape[1:]) for x in parts]
            return lax.scan(add, 0.0, parts)[0]

        program = jax.jit(jax.value_and_grad(chunked, (0, 1)))
        program = program.lower(kernel, hidden).compile()
        seconds = median_seconds(program, kernel, hidden)
        print_row(chunks, f"{1e3 * seconds:.1f}", f"{program_bytes(program) / 1e9:.2f}")


def print_remat(sizes, steps=4):
    print_header("model", "batch", "remat", "ms/step", "GFLOP/sequence", "GB")
    for name in sizes.remat:
        for remat in (None, "cheap", "full"):
            model = named_model(name)
            for layer in model._flatten_layers():
                if isinstance(layer, TransformerStack):
                    layer.remat = remat
            what = f"{name}, remat {remat}"
            _, _, batches = sizes.models[name]
            for size, cost, seconds in each_batch(what, model, batches, sizes, steps):
                print_row(
                    name,
                    size,
                    remat,
                    f"{1e3 * seconds:.1f}",
                    f"{cost.flops / size / 1e9:.2f}",
                    f"{cost.bytes / 1e9:.2f}",
                )
            del model


def print_options(sizes, steps=4):
    print_header("compiler's option", "ms/step", "GB", "compiling (s)")
    train, state = training(named_model(sizes.options))
    batch = superbatch(sizes, steps, sizes.middle)
    for options in OPTIONS:
        what = ", ".join(f"{k}={v!r}" for k, v in options.items()) or "none"
        try:
            measured = measure(what, train, state, batch, options)
        except jax.errors.JaxRuntimeError as error:
            if "No such compile option" not in str(error):
                raise
            leave_out(what, "this compiler has no such option")
            continue
        if measured is None:
            break
        program, seconds, state = measured
        print_row(
            what,
            f"{1e3 * seconds:.1f}",
            f"{program.bytes / 1e9:.2f}",
            f"{program.compiling:.0f}",
        )


def print_mixing(sizes, batch=16):
    print_header("length", "forward, dense", "FFT", "with backward, dense", "FFT (ms)")
    for length in sizes.mixing:
        row = []
        for backward in (False, True):
            for fft in (False, True):
                layer = layers.LengthMixing(
                    toeplitz=True,
                    max_length=length,
                    name="mixing",
                    dtype="mixed_bfloat16",
                )
                layer.build((None, None, sizes.channels))
                shape = (batch, length, sizes.channels)
                x = jax.random.normal(jax.random.key(0), shape, jnp.bfloat16)

                def forward(weight, x, layer=layer):
                    y, _ = layer.stateless_call(
                        [weight], [], x, context=layers.Context()
                    )
                    return jnp.sum(jnp.square(y.astype("float32")))

                function = jax.grad(forward, (0, 1)) if backward else forward
                fft_product.is_chosen = lambda length, fft=fft: fft  # while tracing
                weight = jnp.array(layer.mixing_matrix.value)
                seconds = median_seconds(jax.jit(function), weight, x)
                row.append(f"{1e3 * seconds:.2f}")
        print_row(length, *row)


TABLES = {
    "rates": print_rates,
    "models": print_models,
    "parts": print_parts,
    "calls": print_calls,
    "logits": print_logits,
    "remat": print_remat,
    "options": print_options,
    "mixing": print_mixing,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--models", help="names in the table of models; default: all")
    parser.add_argument("--tiny", action="store_true", help="to try it on a CPU")
    options = parser.parse_args()
    if keras.backend.backend() != "jax":
        parser.error("set KERAS_BACKEND=jax: this benchmark runs on JAX")
    tables = options.tables.split(",")
    if unknown := [table for table in tables if table not in TABLES]:
        parser.error(f"the tables are {', '.join(TABLES)}, and not {unknown}")
    sizes = TINY if options.tiny else FULL
    if options.models:
        names = options.models.split(",")
        if unknown := [name for name in names if name not in sizes.models]:
            parser.error(f"the models are {', '.join(sizes.models)}, and not {unknown}")
        sizes = sizes._replace(
            models={name: sizes.models[name] for name in names},
            parts=[name for name in sizes.parts if name in names],
            remat=[name for name in sizes.remat if name in names],
        )
    gin.add_config_file_search_path("gin")
    for module in (layers, models):
        for name in module.__all__:
            if isinstance(getattr(module, name), type) and name != "Context":
                gin.external_configurable(getattr(module, name), module=module.__name__)
    device = jax.devices()[0]
    print(f"{device.device_kind}, JAX {jax.__version__}, Keras {keras.__version__}\n")
    failed = False
    for table in tables:
        start = time.perf_counter()
        print(f"## {table}\n")
        try:
            TABLES[table](sizes)
        except Exception:  # One failure must not cost the other tables.
            failed = True
            traceback.print_exc()
            leave_out(table, "failed, see above")
        print(f"\n{table}: {time.perf_counter() - start:.0f} s\n", flush=True)
    print("## Not measured\n")
    if device.platform == "cpu":
        print("- any accelerator: these are the figures of a CPU")
    for line in not_measured:
        print(f"- {line}")
    print("- several devices: see docs/guides/many_devices.md for what they send")
    sys.exit(failed)


if __name__ == "__main__":
    main()
