"""Opens files of data: local or as TensorFlow finds them, decompressed if need be.

The name says whether a file is compressed: .gz, or .zst, which needs pyarrow.
"""

import gzip
import io
import os
import re
import zlib

import tensorflow as tf

from remixer_tf.errors import MissingLibraryError, StorageError, UserError

COMPRESSED = (".gz", ".zst")
# Limits for a decompressed file: times its size, and bytes. Gzip makes text 3 to 10
# times smaller.
_LARGER, _AT_LEAST = 100, 2**26
_CHUNK = 2**20  # bytes


def plain_name(path):
    """Returns a file's name without its compression and number of a shard.

    So that of "train.jsonl-00003-of-00010.gz" is "train.jsonl".
    """
    for end in COMPRESSED:
        path = path.removesuffix(end)
    return re.sub(r"-\d+-of-\d+$", "", path)


def open_bytes(path):
    """Opens a file to read its decompressed bytes, an `io.BufferedReader`.

    Raises an OSError if it cannot be read. Reading raises a ValueError if it cannot be
    decompressed, or becomes over 64 MiB and more than 100 times as large.
    """
    check_no_pipe(path)
    try:
        if "://" in path:
            file = io.BufferedReader(_Remote(path), _CHUNK)
        else:
            file = open(path, "rb", buffering=_CHUNK)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.") from error
    if path.endswith(".gz"):
        return io.BufferedReader(
            _Decompressed(path, gzip.GzipFile(fileobj=file)), _CHUNK
        )
    if path.endswith(".zst"):
        try:
            import pyarrow
        except ImportError as error:
            raise MissingLibraryError(
                f"{path!r} is decompressed with pyarrow, which is not installed. "
                "Install it: python -m pip install pyarrow"
            ) from error
        inner = pyarrow.CompressedInputStream(pyarrow.PythonFile(file), "zstd")
        return io.BufferedReader(_Decompressed(path, inner), _CHUNK)
    return file


def open_text(path):
    """As `open_bytes`, for text. Bytes that are not UTF-8 become lone surrogates.

    Only "\\n" ends a line, and stays at its end. A byte order mark is left out.
    """
    file = open_bytes(path)
    if file.peek(3)[:3] == b"\xef\xbb\xbf":
        file.read(3)
    return io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="\n")


def check_no_pipe(path):
    """TensorFlow finds a pipe empty, and training reads a file more than once."""
    there = "://" not in path and os.path.exists(path)
    if there and not (os.path.isfile(path) or os.path.isdir(path)):
        raise StorageError(
            f"{path} is a pipe or a device, which cannot be read twice. Write what "
            "comes from it to a file, and name that."
        )


class _Remote(io.RawIOBase):
    """A file that TensorFlow reads, as Python's own."""

    def __init__(self, path):
        self._path, self._file = path, tf.io.gfile.GFile(path, "rb")
        with self._errors():
            self._file.size()

    def _errors(self):
        return _as_storage_error(self._path)

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        with self._errors():
            self._file.seek(offset, whence)
            return self._file.tell()

    def tell(self):
        return self._file.tell()

    def readinto(self, buffer):
        with self._errors():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _as_storage_error:
    def __init__(self, path):
        self._path = path

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if isinstance(error, tf.errors.OpError):
            message = f"{self._path} cannot be read: {error.message}."
            raise StorageError(message) from error


class _Decompressed(io.RawIOBase):
    """What a decompressor gives, up to a limit."""

    def __init__(self, path, inner):
        self._path, self._inner, self._read = path, inner, 0
        size = tf.io.gfile.stat(path).length
        if not size:  # No compressed file is; a copy that failed leaves one.
            raise UserError(f"{path} cannot be decompressed: it has no bytes.")
        self._most = max(_LARGER * size, _AT_LEAST)

    def readable(self):
        return True

    def readinto(self, buffer):
        try:
            data = self._inner.read(len(buffer))
        except UserError:
            raise
        except (OSError, EOFError, zlib.error, ValueError) as error:
            message = f"{self._path} cannot be decompressed: {error}."
            raise UserError(message) from error
        self._read += len(data)
        if self._read > self._most:
            raise UserError(
                f"{self._path} becomes more than {_LARGER} times as large when it is "
                "decompressed. Decompress it yourself if that is meant."
            )
        buffer[: len(data)] = data
        return len(data)
