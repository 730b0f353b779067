"""XLA's products of matrices on processors with AVX2 and without AVX-512: Eigen's.

XLA takes them from YNNPACK unless it is told otherwise. With AVX2 that library reads a
matrix in strips of 16 columns, which few rows pay for; Eigen reads whole lines of it.

Chosen for: CPUs with AVX2 and without AVX-512, where YNNPACK is the faster one.
Gain: 8 rows of T5.1.1 small are decoded at 272 tokens/s in place of 170; a training
step on JAX takes 8.3 CPU seconds in place of 9.3 (docs/results/decoding.md and
training_step.md; 2 cores of an AMD EPYC with AVX2, 2026-11-27).
"""

import contextlib
import functools
import os

import tensorflow as tf

OPTION = "xla_cpu_experimental_ynn_fusion_type"  # empty: YNNPACK gets nothing
_KNOWN_BY = "2.21."  # of TensorFlow; a version that does not know it ends the process
_told = []  # what XLA was told, once it was


@functools.cache
def are_eigens():
    """Whether Eigen shall multiply here, where XLA_FLAGS says nothing about it."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        flags = next((line for line in file if line.startswith("flags")), "").split()
        named = OPTION in os.environ.get("XLA_FLAGS", "")
        return "avx2" in flags and "avx512f" not in flags and not named
    return False


def suit(model):
    """Whether Eigen is the faster one for a model's answers.

    With tied logits it is not: Eigen multiplies slowly by a transposed matrix.
    """
    return are_eigens() and not getattr(model, "tied_logits", False)


def tell_tensorflow(model):
    """Tells TensorFlow's XLA to use Eigen, if that suits the first model of a process.

    Returns what XLA was told: `OPTION`, or "" for nothing. XLA reads XLA_FLAGS once, at
    its first program. The variable is then as it was: a child process may have a
    version of XLA that ends at an option which it does not know.
    """
    if not _told:
        known = tf.__version__.startswith(_KNOWN_BY)
        _told.append(OPTION if known and suit(model) else "")
        if _told[0]:
            _compile_with(_told[0])
    return _told[0]


def _compile_with(option):
    flags = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{flags or ''} --{option}=".strip()
    try:
        program = tf.function(lambda x: x + 1.0, jit_compile=True, autograph=False)
        text = program.experimental_get_compiler_ir(tf.TensorSpec([]))
        text(stage="hlo", platform_name="CPU")
    finally:
        if flags is None:
            del os.environ["XLA_FLAGS"]
        else:
            os.environ["XLA_FLAGS"] = flags
