"""Which process writes, as others can tell: those of this machine, and elsewhere."""

import contextlib
import functools
import hashlib
import os
import socket


def describe(pid):
    """Returns `host`, `machine`, `pid` and `started` of a process of this machine.

    A dictionary for JSON; None if the process is gone.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # It lives, and is another user's.
    started = None
    with contextlib.suppress(OSError):
        # After the name, which may hold spaces: the state, and as the 20th the time.
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        if fields[0] == "Z":
            return None
        started = fields[19]
    host = socket.gethostname()
    return {"host": host, "machine": machine(), "pid": pid, "started": started}


@functools.cache
def machine():
    """Returns 8 hexadecimal digits of those who see this process' id, or None.

    Containers share a host's name, and have ids of their own.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            name = file.read() + os.readlink("/proc/self/ns/pid")
    except OSError:
        return None
    return hashlib.sha256(name.encode()).hexdigest()[:8]
