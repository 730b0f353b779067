"""What a table was measured on: the machine, its rates, and the programs' versions.

    python -m benchmarks.machine [--anchors=PYTHON]

Benchmarks of speed print it above their table. The rates are NumPy's: a product of two
matrices, and a matrix times a vector, which reads memory as decoding one row does.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys

import numpy as np

from benchmarks.measure import seconds

INSTRUCTIONS = {"avx512f": "AVX-512", "avx512_vnni": "VNNI", "avx512_bf16": "BF16"}
OURS = ["tensorflow", "keras", "jax", "ai-edge-litert", "onnxruntime"]
OTHERS = ["torch", "transformers", "ctranslate2", "litserve"]
_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def product_rate(size=2048):
    """FLOP/s of a float32 product, the best of ten."""
    a = np.random.default_rng(0).standard_normal((size, size), "float32")
    return 2 * size**3 / min(seconds(lambda: a @ a) for _ in range(10))


def read_rate(size=8192):
    """Bytes/s of a float32 matrix times a vector, the best of ten."""
    matrix, vector = np.ones((size, size), "float32"), np.ones(size, "float32")
    return matrix.nbytes / min(seconds(lambda: matrix @ vector) for _ in range(10))


def versions(names, python):
    """{name: version} of the packages that a Python has."""
    command = [python, "-c", _VERSIONS, *names]
    return json.loads(subprocess.run(command, capture_output=True, check=True).stdout)


def describe(python=None):
    """Two sentences and a list of versions; `python` is the anchors' program."""
    with open("/proc/cpuinfo") as file:
        lines = [line.partition(":")[::2] for line in file]
    about = {name.strip(): value.strip() for name, value in lines}
    flags = about["flags"].split()
    kinds = [name for flag, name in INSTRUCTIONS.items() if flag in flags]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found = versions(OURS, sys.executable)
    if python:
        found |= versions(OTHERS, python)
    return (
        f"{len(os.sched_getaffinity(0))} cores of an {about['model name']} "
        f"({', '.join(kinds) or 'AVX2 alone'}), {memory:.0f} GB, "
        f"{datetime.date.today()}. NumPy multiplies float32 matrices at "
        f"{product_rate() / 1e9:.0f} GFLOP/s, and reads memory at "
        f"{read_rate() / 1e9:.0f} GB/s.\n"
        + ", ".join(f"{name} {version}" for name, version in found.items())
    )


def print_machine(python=None):
    """Prints `describe` from a process of its own, whose threads then end."""
    command = [sys.executable, "-m", "benchmarks.machine"]
    command += [f"--anchors={python}"] * bool(python)
    print(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--anchors", metavar="PYTHON")
    print(describe(parser.parse_args().anchors))


if __name__ == "__main__":
    main()
