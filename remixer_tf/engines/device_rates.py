"""How fast devices multiply matrices: as stated by their makers, and as measured."""

import re
import time

# FLOP/s of dense products of 16-bit floats, by the first words of a device's name as
# TensorFlow and JAX give it; of a TPU v2 or v3 for each of a chip's two cores. Source:
# the makers' data sheets.
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
    """The FLOP/s that a device's maker states, or None where they are not known here.

    Args:
        kind: str, the device's name, such as "NVIDIA H200".
        dtype: str, that of the products; only those of 16 bits are known.
    """
    # Whole words: an L40 is no L4.
    names = [name for name in PEAKS if re.match(rf"{name}\b", kind)]
    if dtype not in ("bfloat16", "float16") or not names:
        return None
    return PEAKS[max(names, key=len)]


def measure_products(run, size, chain, seconds):
    """Returns the FLOP/s of square products: the best of as many runs as fit.

    Args:
        run: a function that computes them, and waits for the device.
        size, chain: ints, width and number of the products.
        seconds: float, how long to measure.
    """
    run()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return 2 * chain * size**3 / best


def matmul_sizes(accelerator):
    """Width and number of the products that measure a rate: two ints.

    An accelerator needs large ones in a chain, since starting them and copying the
    result would take longer than a small one.
    """
    return (8192, 16) if accelerator else (1024, 1)
