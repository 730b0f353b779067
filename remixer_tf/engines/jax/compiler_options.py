"""Options of XLA for training steps on CPUs."""

import functools
import os

import jax

from remixer_tf import programs

_YNNPACK = "xla_cpu_experimental_ynn_fusion_type"  # what it gets; empty: nothing


@functools.cache
def compiler_options():
    """Options for `jax.jit` of a training step, a dictionary.

    XLA multiplies matrices by YNNPACK, or else by Eigen. With AVX2 alone YNNPACK is the
    slower one.

    Chosen for: CPUs with AVX2 and without AVX-512, if XLA_FLAGS does not choose.
    Gain: a step of T5.1.1 small takes 8.1 CPU seconds in place of 9.0
    (docs/results/training_step.md; 2 cores of an AMD EPYC with AVX2, 2026-11-27).
    """
    if jax.default_backend() != "cpu" or _YNNPACK in os.environ.get("XLA_FLAGS", ""):
        return {}
    features = programs.processor().split()
    if "avx2" not in features or "avx512f" in features:
        return {}
    options = {_YNNPACK: ""}
    try:
        jax.jit(lambda x: x + 1.0, compiler_options=options)(0.0)
    except jax.errors.JaxRuntimeError:  # another version, without this option
        return {}
    return options
