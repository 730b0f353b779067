"""Tests."""

import os

if os.environ.get("KERAS_BACKEND") == "jax":
    # XLA compiles each operation for each shape, and tests run it once or twice: to
    # compile fast matters more here than fast code.
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
    )
