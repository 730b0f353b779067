"""Keeps what was read of files until the files change.

A name says nothing about the content: a corrected table keeps its name.
"""

import collections
import functools
import hashlib
import os
import threading

import tensorflow as tf


def file_state(path):
    """Returns (path, size, times, number) of a file, which differ once it changes.

    A missing file has a state too.
    """
    path = os.fspath(path)
    try:
        if "://" in path:
            found = tf.io.gfile.stat(path)
            return path, found.length, found.mtime_nsec
        found = os.stat(path)
    except (OSError, tf.errors.OpError):
        return path, None
    # The time of the last change (ctime) differs even where `cp -p` keeps the others.
    times = found.st_mtime_ns, found.st_ctime_ns
    return os.path.abspath(path), found.st_size, *times, found.st_ino


def kept_while_unchanged(files, maxsize):
    """A decorator: keeps the last `maxsize` results of a function that reads files.

    `files` is a function of the same arguments, which can be keys of a dictionary. It
    returns the paths that are read, and is called each time.
    """

    def decorate(function):
        kept, lock = collections.OrderedDict(), threading.RLock()

        @functools.wraps(function)
        def read(*arguments):
            state = tuple(map(file_state, files(*arguments)))
            with lock:
                if kept.get(arguments, (None,))[0] != state:
                    kept.pop(arguments, None)  # two versions need twice the memory
                    kept[arguments] = state, function(*arguments)
                kept.move_to_end(arguments)
                while len(kept) > maxsize:
                    kept.popitem(last=False)
                return kept[arguments][1]

        return read

    return decorate


@kept_while_unchanged(lambda path: [path], maxsize=64)
def file_digest(path):
    """Returns the SHA-256 of a file, 64 hexadecimal digits."""
    with tf.io.gfile.GFile(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
