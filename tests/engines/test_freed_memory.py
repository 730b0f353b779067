"""Memory that was freed is used again."""

import platform
import subprocess
import sys

import pytest

from remixer_tf.engines.jax import freed_memory

FAULTS = """
import resource, runpy, sys
import numpy as np

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(25_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults()
again = faults()
runpy.run_path(sys.argv[1])["keep_freed_memory"]()
faults()
print(again, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's option")
def test_freed_memory_is_kept():
    """In a process of its own: it stays so."""
    command = [sys.executable, "-c", FAULTS, freed_memory.__file__]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    before, kept = map(int, output.split())
    assert before > 50
    assert kept < before / 10
