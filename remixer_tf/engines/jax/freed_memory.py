"""What becomes of memory that a program on CPUs has freed."""

import ctypes
import platform

# Of glibc's malloc.h: never give memory back (M_TRIM_THRESHOLD), no block from mmap
# (M_MMAP_MAX).
MALLOPT = {-1: -1, -4: 0}


def keep_freed_memory():
    """Has the C library keep memory that is freed, for what is allocated next.

    A program on CPUs allocates its temporaries anew at each call, a gigabyte in T5.1.1
    small. glibc gives blocks of that size back to the system at once, whose faults at
    the next call took a tenth to a fifth of a step. The process stays as large as it
    once was. Only the heap of the main thread can grow so far, so that programs have to
    run there: JAX's option jax_cpu_enable_async_dispatch is off. Another C library is
    left as it is.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        for parameter, value in MALLOPT.items():
            libc.mallopt(parameter, value)
