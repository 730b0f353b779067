"""The folder of a run: it can be written, and one run at a time holds it."""

import contextlib
import json
import os
import threading
import time

import tensorflow as tf
from absl import logging

from remixer_tf.checkpoints.export_folder import check_no_export
from remixer_tf.checkpoints.whole_folder import describe, without_empty_folders
from remixer_tf.errors import StorageError, UserError

HEARTBEAT_SECONDS = 15
STALE_SECONDS = 120


def check_writable(model_dir, option="--model_dir"):
    """Makes the folder of the run, or raises OSError if nothing can be written there.

    An export's folder is a ValueError. `option` names the folder in errors.
    """
    check_no_export(model_dir)
    path = os.path.join(model_dir, f".writable-{os.getpid()}")
    try:
        tf.io.gfile.makedirs(model_dir)
        try:
            with tf.io.gfile.GFile(path, "w") as file:
                file.write("x")
        finally:  # A full disk leaves an empty file.
            if tf.io.gfile.exists(path):
                tf.io.gfile.remove(path)
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "message", error)
        raise StorageError(
            f"Nothing can be written to {option} {model_dir}: {reason}. Choose "
            "another folder, or make room."
        ) from None


@contextlib.contextmanager
def folder_of_run(model_dir, option="--model_dir"):
    """Makes the folder of the run. After an error it removes new, empty folders.

    `option` names the folder in errors.
    """
    with without_empty_folders(model_dir):
        try:
            check_writable(model_dir, option)
        except OSError as error:
            # Files that a kill left half written may fill the disk. They are removed
            # when the run has its lock. If the disk is full then, the next file raises.
            if "No space left" not in str(error):
                raise
        yield


def check_no_results(model_dir):
    """Raises ValueError if a folder without checkpoints has results of evaluations.

    Predictions alone do not count: a kill in the first evaluation leaves them.
    """
    walk = tf.io.gfile.walk(os.path.join(model_dir, "eval"))
    if any(name.endswith(".json") for _, _, names in walk for name in names):
        raise UserError(
            f"{model_dir} holds evaluations of an earlier run, and no checkpoint to "
            "resume from: they would count as this run's. Move the folder away, or set "
            "another --model_dir."
        )


class RunLock:
    """Holds run.lock in a folder while a process writes there, as a context manager.

    The file names its process, which renews it every HEARTBEAT_SECONDS. If that process
    ran on this machine and has ended, a new run takes the lock over. If it runs on
    another machine, a new run waits STALE_SECONDS for it to renew the file. If two runs
    start at once, `flock` lets one take it, on file systems that have it. The folder
    exists. One of several hosts is `enabled` to take the lock. Raises OSError if
    another run lives in the folder.

    Args:
        folder: str, local or gs://.
        enabled: bool.
        does: str, what a process does in the folder, for errors.
        option: str, the option that names the folder, for errors.
    """

    def __init__(self, folder, enabled=True, does="trains", option="--model_dir"):
        self._folder, self._enabled = folder, enabled
        self._does, self._option = does, option
        self._path = os.path.join(folder, "run.lock")
        self._me = describe(os.getpid())
        self._ended = threading.Event()
        self._gone = False  # whether the file is missing
        self._lost_to = self._thread = None

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
        """Raises OSError if the file has gone, or names another process."""
        if self._enabled and "://" not in self._path:
            self._gone = self._gone or not os.path.exists(self._path)
        if self._gone:
            if tf.io.gfile.exists(self._folder):
                what = "the file was removed"
                then = "Run the same command"
            else:
                what = "the folder was moved or removed"
                then = "Run the same command with the new place as --model_dir"
            raise StorageError(
                f"There is no {self._path} any more: {what} while this process trained "
                "in it, and another run may start there, so this one ends. "
                f"{then} to resume from the last checkpoint."
            )
        if self._lost_to is not None:
            raise StorageError(
                f"{_name(self._lost_to)} has taken {self._folder} over: it took this "
                f"process for dead, which did not renew {self._path} for "
                f"{STALE_SECONDS} s or could not be seen from there. It resumes from "
                "the last checkpoint. This run ends here."
            )

    def _take(self):
        holder = self._read()
        if holder is not None and self._lives(holder):
            seconds = max(0, time.time() - self._time() / 1e9)
            raise StorageError(
                f"{_name(holder)} {self._does} in {self._folder} (it renewed "
                f"{self._path} {seconds:.0f} s ago). Wait until it has ended, stop it, "
                f"or set another {self._option}."
            )
        try:
            self._write()
        except OSError:  # A full disk leaves an empty file.
            with contextlib.suppress(OSError):
                os.remove(self._path)
            raise

    def _write(self):
        # Python's `open` raises the usual errors.
        make = tf.io.gfile.GFile if "://" in self._path else open
        with make(self._path, "w") as file:
            json.dump(self._me, file)

    def _read(self):
        """Returns the lock's holder: {} if the file names none, None without a file."""
        try:
            with tf.io.gfile.GFile(self._path) as file:
                holder = json.loads(file.read())
        except tf.errors.NotFoundError:
            return None
        except (ValueError, RecursionError):  # Being written, or damaged.
            return {}
        known = isinstance(holder, dict) and {"host", "pid"} <= holder.keys()
        return holder if known else {}

    def _lives(self, holder):
        # Containers may share a host's name, and have process ids of their own.
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
        """Returns the time of the last renewal in nanoseconds; 0 without a file."""
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
        if holder is None:
            self._gone = True
        elif holder != self._me:
            self._lost_to = holder
        elif "://" in self._path:
            self._write()
        else:
            os.utime(self._path)


@contextlib.contextmanager
def _turn(folder):
    """Lets one process at a time run the block, on file systems with `flock`."""
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
