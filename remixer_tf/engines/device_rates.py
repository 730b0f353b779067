"""The rates at which devices multiply matrices: from data sheets, and measured."""

import functools
import re
import time

import numpy as np
from keras import ops

# FLOP/s of dense products of 16-bit floats, by the first words of a device's name in
# TensorFlow and JAX. Sources: https://www.nvidia.com/en-us/data-center/<name>/ (half of
# a figure "with sparsity") and https://cloud.google.com/tpu/docs/<version>. A TPU v2 or
# v3 has two cores, each a device; the rate is that of one.
PEAKS = {
    "Tesla V100": 125e12,
    "Tesla T4": 65e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40": 181e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA A10": 125e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
}


def peak_rate(kind, dtype):
    """Returns the FLOP/s that a device's maker states, or None if unknown.

    `kind` is its name, such as "NVIDIA H200". Rates are known for 16-bit dtypes.
    """
    # Whole words: an L40 is no L4.
    names = [name for name in PEAKS if re.match(rf"{name}\b", kind)]
    if dtype not in ("bfloat16", "float16") or not names:
        return None
    return PEAKS[max(names, key=len)]


@functools.cache
def matmul_rate(dtype, accelerator, seconds=0.1):
    """Measures the FLOP/s of square products on one device, once in a process.

    It returns the best rate of the chains of products that fit in the seconds. Chains
    are long on an accelerator: small products take longer to start than to compute.
    """
    size, chain = (8192, 16) if accelerator else (1024, 1)
    a = np.random.default_rng(0).standard_normal((size, size), "float32")
    a = ops.cast(ops.convert_to_tensor(a * size**-0.5), dtype)

    def multiply():
        x = a
        for _ in range(chain):
            x = ops.matmul(a, x)
        float(x[0, 0])  # Only one number comes back from the device.

    multiply()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        multiply()
        best = min(best, time.perf_counter() - start)
    return 2 * chain * size**3 / best
