"""Training on one accelerator, by JAX: where the time of a step goes.

    KERAS_BACKEND=jax python -m benchmarks.accelerator [--tables=rates,models,...]

Needs Keras, JAX and gin, and no TensorFlow. The tables:

    rates   bfloat16 matrix products and copies: the ceilings of this device
    models  T5.1.1 and Remixer, T5's pre-training lengths, several batches
    parts   a step of T5.1.1 base and of Remixer base taken apart
    calls   steps in one call (`lax.scan`)
    mixing  Toeplitz mixing by the FFT and by the dense product

Weights are float32, compute is bfloat16, the optimizer is Adafactor, the dropout 0, and
rows are full. FLOPs are those of the matrix products, backward pass included, counted
from the program's shapes. "Share" is of the rate that the device's own square product
reached in this run. Bytes are what the compiled program says it holds at once. A batch
that does not fit the device's memory says so in its row, and larger ones are not tried.
"""

import argparse
import statistics
import time

import gin
import jax
import keras
import numpy as np
from jax import lax
from jax import numpy as jnp

from remixer_tf import layers, models
from remixer_tf.layers import length_mixing
from remixer_tf.models.build import build_model
from remixer_tf.objectives import losses
from remixer_tf.optimizers import Adafactor
from remixer_tf.training.jax_step import product_flops, program_bytes

INPUTS, TARGETS = 512, 114  # T5's span corruption
VOCAB_SIZE = 32100
# name: gin file, bindings, batches
MODELS = {
    "T5.1.1 small": ("t5_1_1_small", (), (64, 128, 256)),
    "Remixer small, equal parameters": ("remixer_small", ("D_FF = 853",), (128, 256)),
    "T5.1.1 base": ("t5_1_1_base", (), (32, 64, 128)),
    "Remixer base": ("remixer_base", (), (64, 128)),
    "T5.1.1 large": ("t5_1_1_large", (), (32, 64)),
}
MIXING_LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
SCANS = (1, 8, 32)


def make_model(gin_file, bindings=()):
    """A built `EncoderDecoder` in bfloat16, from a file of `gin/models`."""
    gin.clear_config()
    gin.parse_config_files_and_bindings(
        [f"models/{gin_file}.gin"],
        list(bindings),
        skip_unknown=["train", "evaluate", "text_to_text", "text_scorer"],
    )
    return build_model(gin.get_configurable("EncoderDecoder"), "mixed_bfloat16")


def random_batch(steps, batch):
    """Full rows, `[steps, batch, length]`, under seqio's names."""
    rng = np.random.default_rng(0)

    def tokens(length):
        return rng.integers(2, VOCAB_SIZE, (steps, batch, length)).astype("int32")

    targets = tokens(TARGETS)
    return {
        "encoder_input_tokens": tokens(INPUTS),
        "decoder_input_tokens": np.roll(targets, 1, axis=-1),
        "decoder_target_tokens": targets,
        "decoder_loss_weights": np.ones_like(targets),
    }


class Step:
    """A model's training step and its parts, as functions of (state, batch)."""

    def __init__(self, model):
        self._model = model
        self._optimizer = Adafactor(1e-3)
        self._optimizer.build(model.trainable_variables)
        variables = (
            model.trainable_variables,
            model.non_trainable_variables,
            self._optimizer.variables,
        )
        self.state = [[jnp.array(v.value) for v in group] for group in variables]

    def _loss(self, trainable, non_trainable, batch):
        logits, _ = self._model.stateless_call(
            trainable, non_trainable, batch, training=True
        )
        sums = losses.cross_entropy(
            logits,
            batch["decoder_target_tokens"],
            batch["decoder_loss_weights"],
            z_loss=1e-4,
        )
        return (sums["loss"] + sums["z_loss"]) / sums["weight"]

    def logits(self, state, batch):
        """The forward pass without a loss."""
        logits, _ = self._model.stateless_call(*state[:2], batch, training=True)
        return state, jnp.sum(logits)

    def loss(self, state, batch):
        """The forward pass."""
        return state, self._loss(*state[:2], batch)

    def gradients(self, state, batch):
        """Forward and backward, without an update of the weights."""
        loss, gradients = jax.value_and_grad(self._loss)(*state[:2], batch)
        # All are used, and none changes a weight.
        return state, loss + 0 * sum(jnp.sum(g) for g in gradients)

    def update(self, state, batch):
        """The whole step."""
        trainable, non_trainable, slots = state
        loss, gradients = jax.value_and_grad(self._loss)(*state[:2], batch)
        trainable, slots = self._optimizer.stateless_apply(slots, gradients, trainable)
        return [trainable, non_trainable, slots], loss


def compile_scan(function, state, batch):
    """Compiles several steps in one call, with the state's memory given away.

    Returns:
        the program, and the FLOPs of its matrix products in one step.
    """

    def scan(state, superbatch):
        return lax.scan(function, state, superbatch)

    def spec(tree, skip=0):
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape[skip:], x.dtype), tree
        )

    one_step = jax.make_jaxpr(function)(spec(state), spec(batch, skip=1))
    program = jax.jit(scan, donate_argnums=0).lower(spec(state), spec(batch)).compile()
    return program, product_flops(one_step.jaxpr)


def measure(program, state, batch, rounds=3):
    """Median seconds of a call; takes the state, and gives it back."""
    batch = jax.device_put(batch)
    state, loss = jax.block_until_ready(program(state, batch))
    if not np.all(np.isfinite(loss)):
        raise FloatingPointError(f"The loss is not finite: {loss}")
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        state, loss = jax.block_until_ready(program(state, batch))
        times.append(time.perf_counter() - start)
    return statistics.median(times), state


def median_seconds(function, *args, rounds=10):
    """Median seconds of a jitted function, called alone."""
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def matmul_rate(size=8192, repeats=10):
    """FLOP/s of a bfloat16 product of random numbers."""
    a, b = jax.random.normal(jax.random.key(0), (2, size, size), jnp.bfloat16)
    product = jax.jit(
        lambda a, b: lax.fori_loop(0, repeats, lambda _, x: (x @ b) * 0.01, a)
    )
    return repeats * 2 * size**3 / median_seconds(product, a, b, rounds=5)


def copy_rate(gigabytes=4, repeats=10):
    """Bytes/s, read and written, of adding one to a large array."""
    x = jnp.zeros(int(gigabytes * 2**30 / 4), jnp.float32)
    copy = jax.jit(lambda x: lax.fori_loop(0, repeats, lambda _, x: x + 1, x))
    return repeats * 2 * x.nbytes / median_seconds(copy, x, rounds=3)


def print_row(*cells):
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def print_header(*cells):
    print_row(*cells)
    print("|---" * len(cells) + "|", flush=True)


def print_rates(rate):
    print_header("what", "rate")
    print_row("bfloat16 product, 8192", f"{rate / 1e12:.0f} TFLOP/s")
    print_row("copy, read and written", f"{copy_rate() / 1e12:.2f} TB/s")


def print_models(rate, names, steps=4):
    print_header(
        "model",
        "parameters (M)",
        "batch",
        "ms/step",
        "sequences/s",
        "tokens/s",
        "GFLOP/sequence",
        "TFLOP/s",
        "share",
        "GB",
        "compiling (s)",
    )
    for name in names:
        gin_file, bindings, batches = MODELS[name]
        model = make_model(gin_file, bindings)
        step = Step(model)
        state = step.state
        for size in batches:
            batch = random_batch(steps, size)
            start = time.perf_counter()
            try:
                program, flops = compile_scan(step.update, state, batch)
                compiling = time.perf_counter() - start
                seconds, state = measure(program, state, batch)
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error):
                    raise
                print_row(name, "", size, "does not fit", *[""] * 7)
                break
            seconds /= steps
            print_row(
                name,
                f"{model.count_params() / 1e6:.2f}",
                size,
                f"{1e3 * seconds:.1f}",
                f"{size / seconds:.0f}",
                f"{size * (INPUTS + TARGETS) / seconds:,.0f}",
                f"{flops / size / 1e9:.1f}",
                f"{flops / seconds / 1e12:.0f}",
                f"{flops / seconds / rate:.1%}",
                f"{program_bytes(program) / 1e9:.1f}",
                f"{compiling:.0f}",
            )
        del step, state, model, program


def print_parts(rate, names, size=64, steps=4):
    print_header("model", "what", "ms", "TFLOP/s", "share")
    for name in names:
        gin_file, bindings, _ = MODELS[name]
        step = Step(make_model(gin_file, bindings))
        state, batch = step.state, random_batch(steps, size)
        for part in ("logits", "loss", "gradients", "update"):
            program, flops = compile_scan(getattr(step, part), state, batch)
            seconds, state = measure(program, state, batch)
            seconds /= steps
            print_row(
                name,
                part,
                f"{1e3 * seconds:.1f}",
                f"{flops / seconds / 1e12:.0f}",
                f"{flops / seconds / rate:.1%}",
            )
        del step, state


def print_calls(size=128):
    print_header("steps in a call", "ms/step", "compiling (s)")
    step = Step(make_model("t5_1_1_small"))
    state = step.state
    for steps in SCANS:
        batch = random_batch(steps, size)
        start = time.perf_counter()
        program, _ = compile_scan(step.update, state, batch)
        compiling = time.perf_counter() - start
        seconds, state = measure(program, state, batch, rounds=5)
        print_row(steps, f"{1e3 * seconds / steps:.2f}", f"{compiling:.0f}")


def print_mixing(size=16, channels=512):
    print_header("length", "forward, dense", "FFT", "with backward, dense", "FFT (ms)")
    for length in MIXING_LENGTHS:
        row = []
        for backward in (False, True):
            for fft_from in (length + 1, 1):
                layer = length_mixing.LengthMixing(
                    length, toeplitz=True, name="mixing", dtype="mixed_bfloat16"
                )
                layer.build((None, None, channels))
                x = jax.random.normal(
                    jax.random.key(0), (size, length, channels), jnp.bfloat16
                )

                def forward(weight, x, layer=layer):
                    y, _ = layer.stateless_call(
                        [weight], [], x, context=layers.Context()
                    )
                    return jnp.sum(jnp.square(y.astype("float32")))

                function = jax.grad(forward, (0, 1)) if backward else forward
                length_mixing.FFT_FROM_LENGTH = fft_from  # read while tracing
                weight = jnp.array(layer.mixing_matrix.value)
                seconds = median_seconds(jax.jit(function), weight, x)
                row.append(f"{1e3 * seconds:.2f}")
        print_row(length, *row)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", default="rates,models,parts,calls,mixing")
    parser.add_argument("--models", default=",".join(MODELS))
    options = parser.parse_args()
    if keras.backend.backend() != "jax":
        parser.error("set KERAS_BACKEND=jax: this benchmark runs on JAX")
    gin.add_config_file_search_path("gin")
    for module in (layers, models):
        for name in module.__all__:
            if isinstance(getattr(module, name), type) and name != "Context":
                gin.external_configurable(getattr(module, name), module=module.__name__)
    device = jax.devices()[0]
    print(f"{device.device_kind}, JAX {jax.__version__}, Keras {keras.__version__}\n")
    rate = matmul_rate()
    names = [name for name in MODELS if name in options.models.split(",")]
    tables = {
        "rates": lambda: print_rates(rate),
        "models": lambda: print_models(rate, names),
        "parts": lambda: print_parts(rate, [n for n in names if "base" in n]),
        "calls": print_calls,
        "mixing": print_mixing,
    }
    for table in options.tables.split(","):
        start = time.perf_counter()
        print(f"## {table}\n")
        tables[table]()
        print(f"\n{table}: {time.perf_counter() - start:.0f} s\n", flush=True)


if __name__ == "__main__":
    main()
