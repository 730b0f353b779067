"""A folder of images, made for the tests: each class has its colour."""

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from remixer_tf.data.image_sources import ImageFolder

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


def png_header(width, height):
    """The first bytes of a PNG that says that it has these sides in pixels."""
    sides = width.to_bytes(4) + height.to_bytes(4)
    return b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR" + sides


def jpeg_with_sides(jpeg, width, height):
    """A JPEG whose header says that it has these sides in pixels."""
    start = jpeg.index(b"\xff\xc0") + 5  # SOF0: its length, its precision, the sides
    return jpeg[:start] + height.to_bytes(2) + width.to_bytes(2) + jpeg[start + 4 :]


def prepare_tfds(folder, data_dir):
    """Writes the split "train" of a folder as a prepared dataset of TFDS, two shards.

    Args:
        folder: str, of `make_folder`, with at least nine images.
        data_dir: `pathlib.Path`.

    Returns:
        dictionary, the arguments `name` and `data_dir` of `TfdsImages`.
    """
    home = data_dir / "colors" / "1.0.0"
    home.mkdir(parents=True)
    classes = sorted(COLORS)
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=classes),
        }
    )
    template = tfds.core.ShardedFileTemplate(
        data_dir=home, dataset_name="colors", split="train", filetype_suffix="tfrecord"
    )
    examples = [
        features.serialize_example({"image": e["image"], "label": int(e["label"])})
        for e in ImageFolder(folder).read("train").as_numpy_iterator()
    ]
    shards = [examples[:8], examples[8:]]
    for number, shard in enumerate(shards):
        name = f"colors-train.tfrecord-{number:05d}-of-{len(shards):05d}"
        with tf.io.TFRecordWriter(str(home / name)) as writer:
            for example in shard:
                writer.write(example)
    split = tfds.core.SplitInfo(
        name="train",
        shard_lengths=[len(shard) for shard in shards],
        num_bytes=sum(map(len, examples)),
        filename_template=template,
    )
    tfds.folder_dataset.write_metadata(
        data_dir=home, features=features, split_infos=[split], version="1.0.0"
    )
    return {"name": "colors", "data_dir": str(data_dir)}
