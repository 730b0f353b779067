"""One run at a time in a folder."""

import contextlib
import json
import os
import threading
import time

import tensorflow as tf
from absl import logging

from remixer_tf.checkpoints.processes import describe
from remixer_tf.errors import StorageError

HEARTBEAT_SECONDS = 15
STALE_SECONDS = 120


class RunLock:
    """Holds <model_dir>/run.lock while a run lives. Use it as a context manager.

    The file names its process, which renews it every HEARTBEAT_SECONDS. A process of
    this machine that is gone holds nothing. One of another machine lives if it renews
    the file within STALE_SECONDS of this machine's clock. Of two runs that start at
    once one takes it, on file systems with `flock`.

    Args:
        model_dir: folder of the run, which exists.
        enabled: whether to take it: of several hosts of a run, one does.

    Raises:
        OSError: another run lives in the folder.
    """

    def __init__(self, model_dir, enabled=True):
        self._folder = model_dir
        self._path = os.path.join(model_dir, "run.lock")
        self._enabled = enabled
        self._me = describe(os.getpid())
        self._ended = threading.Event()
        self._lost_to = None
        self._thread = None

    def __enter__(self):
        if self._enabled:
            with _turn(self._folder):
                self._take()
            self._thread = threading.Thread(target=self._renew, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exception):
        if self._thread:
            self._ended.set()
            self._thread.join()
            if self._read() == self._me:
                tf.io.gfile.remove(self._path)

    def check(self):
        """Raises OSError if another run has taken the folder over."""
        if self._lost_to is not None:
            raise StorageError(
                f"{_name(self._lost_to)} has taken {self._folder} over, since this "
                f"process did not renew {self._path} for {STALE_SECONDS} s. It goes on "
                "from the last checkpoint; this run ends here."
            )

    def _take(self):
        holder = self._read()
        if holder is not None and self._lives(holder):
            seconds = max(0, time.time() - self._time() / 1e9)
            raise StorageError(
                f"{_name(holder)} trains in {self._folder} (it renewed {self._path} "
                f"{seconds:.0f} s ago). Wait until it has ended, stop it, or set "
                "another --model_dir."
            )
        try:
            self._write()
        except OSError:  # A full disk: nobody holds an empty file.
            with contextlib.suppress(OSError):
                os.remove(self._path)
            raise

    def _write(self):
        # Python's own gives the usual errors.
        make = tf.io.gfile.GFile if "://" in self._path else open
        with make(self._path, "w") as file:
            json.dump(self._me, file)

    def _read(self):
        """Returns who holds the lock: {} if it does not say, None if nobody."""
        try:
            with tf.io.gfile.GFile(self._path) as file:
                holder = json.loads(file.read())
        except tf.errors.NotFoundError:
            return None
        except (ValueError, RecursionError):  # It is being written, or damaged.
            return {}
        known = isinstance(holder, dict) and {"host", "pid"} <= holder.keys()
        return holder if known else {}

    def _lives(self, holder):
        # Who sees its ids. Containers may have one host's name, and each its own ids.
        if holder.get("machine") and holder["machine"] == self._me["machine"]:
            return describe(holder["pid"]) == holder
        waits = "%s: waiting up to %d s whether %s lives"
        logging.warning(waits, self._path, STALE_SECONDS, _name(holder))
        seen = self._time()
        for _ in range(STALE_SECONDS):
            time.sleep(1)
            if self._time() != seen:
                return True
        return False

    def _time(self):
        """Returns when the lock was renewed, in nanoseconds; 0 if there is none."""
        try:
            return tf.io.gfile.stat(self._path).mtime_nsec
        except tf.errors.NotFoundError:
            return 0

    def _renew(self):
        while not self._ended.wait(HEARTBEAT_SECONDS):
            try:
                self._beat()
            except (OSError, tf.errors.OpError) as error:
                logging.warning("%s could not be renewed: %s", self._path, error)

    def _beat(self):
        holder = self._read()
        if holder != self._me:
            self._lost_to = holder or {}
        elif "://" in self._path:
            self._write()
        else:
            os.utime(self._path)


@contextlib.contextmanager
def _turn(folder):
    """Lets processes take turns, on file systems with `flock`."""
    try:
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _name(holder):
    if not holder:
        return "Another process"
    return f"Process {holder['pid']} on {holder['host']}"
