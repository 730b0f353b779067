"""Many iterators that live shortly, which must not crash the process.

For 2,000 of each source: `python -m tests.data.stress_iterators 2000`.
"""

import itertools
import pathlib
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf

from remixer_tf.data.augmentation import resize_and_center_crop
from remixer_tf.data.image_sources import ImageFolder, TfdsImages
from remixer_tf.data.images import image_dataset
from tests.data.toy_images import make_folder, prepare_tfds


def take(dataset, count):
    """Returns the first elements of an iterator that is then dropped, as NumPy's."""
    elements = itertools.islice(dataset, count)
    return [tf.nest.map_structure(lambda x: x.numpy(), e) for e in elements]


def live_shortly(source, rounds):
    """Takes one batch from each of `rounds` iterators, and compares it."""
    transforms = [lambda image, _: resize_and_center_crop(image, None, 4)]
    dataset = image_dataset(source, transforms, batch_size=2)
    (expected,) = take(dataset, 1)
    for _ in range(rounds):
        (batch,) = take(dataset, 1)
        np.testing.assert_array_equal(batch["images"], expected["images"])


def main(rounds):
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        folder = make_folder(directory / "colors", {"train": 5})
        prepared = prepare_tfds(folder, directory / "tfds")
        for source in ImageFolder(folder), TfdsImages(**prepared):
            start = time.monotonic()
            live_shortly(source, rounds)
            seconds = time.monotonic() - start
            print(f"{type(source).__name__}: {rounds} iterators, {seconds:.0f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]))
