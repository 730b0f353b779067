"""Checks of texts and images that a loaded run takes: one message a mistake."""

import warnings

import numpy as np
import tensorflow as tf

from remixer_tf.data.image_sources import count_pixels
from remixer_tf.errors import (
    MissingFileError,
    StorageError,
    UserError,
    check_choices,
    check_paths,
    check_unicode,
)
from remixer_tf.serving.image_to_class import MAX_PIXELS


def check_listed(**arguments):
    """Raises a TypeError unless each argument is a list or tuple of str."""
    for name, value in arguments.items():
        several = isinstance(value, (list, tuple))
        if not several or not all(isinstance(text, str) for text in value):
            raise TypeError(
                f"{name} must be a list of str. Received: {name}={value!r:.200}"
            )


class LongTexts:
    """Counts texts that are longer than a model reads.

    `on_long` is "warn" for one warning at the end, or "raise" for an error at the
    first. `what` is a str such as "texts are longer than 64 tokens".
    """

    CHOICES = ("warn", "raise")

    def __init__(self, on_long, what):
        check_choices(self.CHOICES, on_long=on_long)
        self._refuses, self._what = on_long == "raise", what
        self._over = self._total = 0

    def count(self, texts, trimmed):
        """Counts a batch of texts; `trimmed` says of each whether it is cut."""
        over = np.flatnonzero(trimmed)
        if self._refuses and len(over):
            raise UserError(
                f"{self._what} (on_long='raise'). The first: {texts[over[0]]!r:.200}"
            )
        self._over += len(over)
        self._total += len(texts)

    def warn(self):
        """Warns if there were any."""
        if self._over:
            warnings.warn(
                f"{self._over:,} of {self._total:,} {self._what}: they were cut, as in "
                "training.",
                stacklevel=3,
            )


def listed(texts, what="a str or a list of str"):
    """Returns texts, checked, as a list of str, and whether it was one."""
    if isinstance(texts, str):
        check_unicode(texts)
        return [texts], True
    unordered = isinstance(texts, (bytes, dict, set, frozenset))
    if unordered or not hasattr(texts, "__iter__"):
        raise TypeError(f"Expected: {what}. Received: {texts!r:.200}")
    texts = list(texts)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(
                f"Expected: a list of str. Received in the list: {text!r:.200}"
            )
        check_unicode(text)
    return texts, False


def columns(rows, width):
    """Returns `width` lists of str, from rows that are a str or a pair of str."""
    rows = [row if isinstance(row, (tuple, list)) else (row, "") for row in rows]
    for row in rows:
        if len(row) != 2 or not all(isinstance(text, str) for text in row):
            raise TypeError(
                f"Expected: a str, or a pair of str. Received: {row!r:.200}"
            )
        if width == 1 and row[1]:
            raise UserError(f"The task reads one text. Received a pair: {row!r:.200}")
        check_unicode("".join(row))
    return [*map(list, zip(*rows, strict=True))][:width]


def image_bytes(image):
    """Returns the bytes of a file, or of a PNG of an array or of a PIL image."""
    if isinstance(image, str) or hasattr(image, "__fspath__"):
        check_paths(image=image)
        try:
            with open(image, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            raise MissingFileError(f"there is no image {str(image)!r}.") from None
        except OSError as error:
            raise StorageError(f"cannot read {image}: {error.strerror}.") from None
        try:
            pixels = int(count_pixels(tf.constant(data)))
        except tf.errors.InvalidArgumentError:  # a JPEG with a damaged header
            pixels = 0
        if not 0 < pixels <= MAX_PIXELS:
            what = f"has {pixels:,} pixels" if pixels else "is neither a JPEG nor a PNG"
            raise UserError(
                f"{image} {what}. Expected: a JPEG or PNG of at most {MAX_PIXELS:,} "
                "pixels."
            )
        return data
    if hasattr(image, "convert"):
        image = image.convert("RGB")
    array = np.asarray(image)
    three = array.ndim == 3 and array.shape[-1] == 3
    if array.dtype != np.uint8 or not three or not array.size:
        raise TypeError(
            "Expected: a path, a PIL image, or an array uint8 [height, width, 3] of at "
            f"least one pixel. Received: {type(image).__name__}, {array.dtype} "
            f"{list(array.shape)}"
        )
    return tf.io.encode_png(array).numpy()
