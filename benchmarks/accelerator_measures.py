"""Tools of `benchmarks.accelerator`: programs, their seconds, rates, rows."""

import functools
import statistics
import time

import gin
import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from benchmarks.measure import print_row
from remixer_tf.engines.jax.flops import product_flops, program_bytes
from remixer_tf.engines.jax.step import JaxTrainStep, State
from remixer_tf.models.build import build_model
from remixer_tf.objectives.losses import CrossEntropy
from remixer_tf.objectives.objective import Objective
from remixer_tf.optimizers import Adafactor

not_measured = []  # what was not, and why


def make_model(gin_file, *bindings):
    """A built `EncoderDecoder` in bfloat16, from a file of `gin/models`."""
    gin.clear_config()
    gin.parse_config_files_and_bindings(
        [f"models/{gin_file}.gin"],
        list(bindings),
        skip_unknown=["Run"],
    )
    return build_model(gin.get_configurable("EncoderDecoder"), "mixed_bfloat16")


def random_batch(steps, batch, inputs, targets, vocab_size):
    """Full rows, `[steps, batch, length]`, under seqio's names."""
    rng = np.random.default_rng(0)

    def tokens(length):
        return rng.integers(2, vocab_size, (steps, batch, length)).astype("int32")

    targets = tokens(targets)
    return {
        "encoder_input_tokens": tokens(inputs),
        "decoder_input_tokens": np.pad(targets, [(0, 0), (0, 0), (1, 0)])[..., :-1],
        "decoder_target_tokens": targets,
        "decoder_loss_weights": np.ones_like(targets),
    }


def training(model):
    """The engine's own steps, as a function of (state, superbatch), and the state."""
    objective = Objective(CrossEntropy(z_loss=1e-4))
    step = JaxTrainStep(model, Adafactor(1e-3), objective)

    def train(state, superbatch):
        state, sums = step.train_steps(state, superbatch, jnp.zeros(1))
        return state, sums["loss"] / sums["weight"]  # Not finite if all are skipped.

    state = State(*([jnp.array(v.value) for v in group] for group in step.variables()))
    return train, state


class Program:
    """A compiled function of (state, superbatch), which gives both away.

    Args:
        function: returns the new state and a number, which is finite if all is well.
        state: a tree of arrays, taken by the first call.
        superbatch: dictionary of arrays [steps, ...].
        options: dictionary of the compiler's options.

    Attributes:
        compiling: float, seconds.
        flops: int, of the matrix products of one step.
        bytes: int, that it holds on the device at once.
    """

    def __init__(self, function, state, superbatch, options=None):
        steps = len(next(iter(superbatch.values())))
        start = time.perf_counter()
        traced = jax.jit(function, donate_argnums=0).trace(state, superbatch)
        self._program = traced.lower().compile(options)
        self.compiling = time.perf_counter() - start
        self.flops = product_flops(traced.jaxpr.jaxpr).flops // steps
        self.bytes = program_bytes(self._program)
        self._steps, self._batch = steps, superbatch

    def measure(self, state, rounds=3):
        """Returns the median seconds of a step, and the state after all of them.

        Raises:
            FloatingPointError: the number is not finite.
        """
        batch, times = jax.device_put(self._batch), []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            state, number = jax.block_until_ready(self._program(state, batch))
            times.append(time.perf_counter() - start)
        if not np.all(np.isfinite(number)):
            raise FloatingPointError(f"The loss is not finite: {number}")
        return statistics.median(times[1:]) / self._steps, state


def out_of_memory(error):
    return "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)


def median_seconds(function, *args, rounds=10):
    """Median seconds of a jitted function, called alone."""
    jax.block_until_ready(function(*args))
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@functools.cache
def matmul_rate(size, repeats=10):
    """FLOP/s of a bfloat16 product of random numbers."""
    a, b = jax.random.normal(jax.random.key(0), (2, size, size), jnp.bfloat16)
    product = jax.jit(
        lambda a, b: lax.fori_loop(0, repeats, lambda _, x: (x @ b) * 0.01, a)
    )
    return repeats * 2 * size**3 / median_seconds(product, a, b, rounds=5)


def copy_rate(gigabytes, repeats=10):
    """Bytes/s, read and written, of adding one to a large array."""
    x = jnp.zeros(int(gigabytes * 2**30 / 4), jnp.float32)
    copy = jax.jit(lambda x: lax.fori_loop(0, repeats, lambda _, x: x + 1, x))
    return repeats * 2 * x.nbytes / median_seconds(copy, x, rounds=3)


def leave_out(what, why):
    """Says that something was not measured, here and at the end."""
    not_measured.append(f"{what}: {why}")
    print_row(what, why)
