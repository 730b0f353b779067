"""Checksums of the files of a folder, written with them and compared before reading.

A parser may end the process at a flipped bit: TensorFlow's does for the positions of
iterators. So the bytes of all files are compared first. checksums.json holds

    {"crc32": {path below the folder: number}}
"""

import concurrent.futures
import os
import zlib

import tensorflow as tf

from remixer_tf.checkpoints.whole_folder import read_json, write_json
from remixer_tf.errors import UserError

NAME = "checksums.json"
_CHUNK = 1 << 22  # bytes; larger ones are not faster
_THREADS = 4


def write_checksums(folder):
    """Writes the checksums of all files below a folder. One process calls it."""
    names = [
        os.path.relpath(os.path.join(directory, name), folder)
        for directory, _, names in tf.io.gfile.walk(folder)
        for name in names
    ]
    write_json(os.path.join(folder, NAME), {"crc32": checksums(folder, sorted(names))})


def has_checksums(folder):
    """Whether a folder has them. Versions before 2026-11-26 wrote none."""
    return tf.io.gfile.exists(os.path.join(folder, NAME))


def written_checksums(folder):
    """Returns {path below the folder: CRC-32}; {} if there are none.

    Raises a ValueError if they are damaged.
    """
    if not has_checksums(folder):
        return {}
    written = read_json(os.path.join(folder, NAME))
    if isinstance(written, dict) and isinstance(written.get("crc32"), dict):
        return written["crc32"]
    if isinstance(written, dict) and all(type(x) is int for x in written.values()):
        # Before 2026-11-26 they were those of orbax's files alone.
        return {f"arrays/{name}": number for name, number in written.items()}
    raise UserError(f"{os.path.join(folder, NAME)} is damaged: it lists no checksums.")


def changed_files(folder, written):
    """Returns the sorted names among `written` whose files are missing or changed."""
    found = checksums(folder, written)
    return sorted(name for name in written if written[name] != found.get(name))


def checksums(folder, names):
    """Returns {name: CRC-32} of the files in a folder that exist."""

    def of_file(name):
        try:
            return checksum(os.path.join(folder, name))
        except (FileNotFoundError, NotADirectoryError, tf.errors.NotFoundError):
            return None

    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        found = dict(zip(names, pool.map(of_file, names), strict=True))
    return {name: number for name, number in found.items() if number is not None}


def checksum(path):
    """Returns the CRC-32 of a file, local or gs://."""
    # Python's `open` reads local files twice as fast.
    make = tf.io.gfile.GFile if "://" in path else open
    number = 0
    with make(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            number = zlib.crc32(chunk, number)
    return number
