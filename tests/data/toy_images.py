"""A folder of images, made for the tests: each class has its colour."""

import numpy as np
import tensorflow as tf

COLORS = {"blue": (30, 40, 220), "green": (20, 200, 40), "red": (220, 30, 30)}


def make_folder(directory, counts, size=(20, 16), seed=0):
    """Writes `<directory>/<split>/<colour>/<number>.{jpg,png}`.

    Args:
        directory: `pathlib.Path`.
        counts: dictionary from a split's name to its images per class.
        size: height and width in pixels.
        seed: int, of the noise on the images.

    Returns:
        str, the directory.
    """
    rng = np.random.default_rng(seed)
    for split, count in counts.items():
        for name, color in COLORS.items():
            folder = directory / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                noise = rng.integers(-20, 20, (*size, 3))
                image = tf.constant(np.clip(noise + color, 0, 255), tf.uint8)
                if number % 2:
                    data, ending = tf.io.encode_jpeg(image, quality=95), "jpg"
                else:
                    data, ending = tf.io.encode_png(image), "png"
                tf.io.write_file(str(folder / f"{number}.{ending}"), data)
    return str(directory)
