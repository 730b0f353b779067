"""Classes and vectors that a loaded encoder gives."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from remixer_tf.errors import UserError
from remixer_tf.loaded.inputs import columns, image_bytes

BATCH_SIZE = 64


class Class(NamedTuple):
    """The class of a text or an image, by `LoadedRun.classify`.

    Attributes:
        label: str, the likeliest class, or its number where classes have no names.
        probability: float, of that class.
        probabilities: float32 `[classes]`.
    """

    label: Any
    probability: float
    probabilities: np.ndarray


def classes(found):
    """Returns a `Class` for each row of a signature's outputs, a dict of arrays."""
    labels = found["class_ids"].tolist()
    if "outputs" in found:
        labels = [name.decode() for name in found["outputs"]]
    return [
        Class(label, float(row.max()), row)
        for label, row in zip(labels, found["probabilities"], strict=True)
    ]


def encode(function, inputs, read, long):
    """Calls a signature of an encoder on a text, a pair, or a list of these.

    `read` makes the list of results of a dictionary of arrays. `long` is a `LongTexts`.
    """
    pair = isinstance(inputs, tuple) and len(inputs) == 2
    if pair or isinstance(inputs, str):
        return encode(function, [inputs], read, long)[0]
    if isinstance(inputs, (bytes, dict)) or not hasattr(inputs, "__iter__"):
        raise TypeError(
            "Expected: a str, a pair of str, or a list of these. Received: "
            f"{inputs!r:.200}"
        )
    rows, results = list(inputs), []
    for start in range(0, len(rows), BATCH_SIZE):
        batch = rows[start : start + BATCH_SIZE]
        texts = columns(batch, len(function.input_signature))
        found = function(*map(tf.constant, texts))
        found = {key: value.numpy() for key, value in found.items()}
        long.count(batch, found["trimmed"])
        results += read(found)
    return results


def classify_images(function, images):
    """Calls the signature `classify_bytes` on an image, or on a list of images."""
    if not isinstance(images, (list, tuple)):
        return classify_images(function, [images])[0]
    results = []
    for image in images:
        data = image_bytes(image)
        try:
            found = function(tf.constant([data]))
        except tf.errors.InvalidArgumentError as error:
            raise UserError(
                f"{image!s:.200} cannot be decoded: {error.message[:200]}"
            ) from None
        results += classes({key: value.numpy() for key, value in found.items()})
    return results
