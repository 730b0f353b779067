"""Sources of images: a folder, or TensorFlow Datasets.

A source has `name`, `class_names`, `num_examples(split)`, and `tf.data.Dataset`s of
{"image": uint8 [height, width, 3], "label": int32 []}:

- `read(split)`: every example once, in a fixed order;
- `encoded(split)`: the same, with images as the bytes of their files;
- `draw(split, seed, shard_info, start)`: endless, each epoch in a new order, from this
  host's example number `start`.
"""

import contextlib
import os
from unittest import mock

import seqio
import tensorflow as tf

from remixer_tf.arguments import Path, PositiveInt, Text, checked
from remixer_tf.checkpoints.paths import Located, locate
from remixer_tf.data.augmentation import Seeds
from remixer_tf.data.failures import fail_unless
from remixer_tf.errors import UserError

_ENDINGS = (".jpeg", ".jpg", ".png")
_AUTOTUNE = tf.data.AUTOTUNE
# ImageNet's largest has 61 million. One of these takes 0.2 GB, as float32 0.8 GB.
MAX_PIXELS = 2**26
_PNG = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR"
_JPEG = b"\xff\xd8\xff"


def count_pixels(data):
    """Height times width, as the header of a file's content says: an int64.

    A file of some kilobytes may claim to be an image of gigabytes. 0 if it is neither a
    JPEG nor a PNG. The op fails on a JPEG with a damaged header.
    """
    # Every PNG starts with these 16 bytes; its width and height follow.
    head = tf.strings.substr(data, 0, 24)
    is_png = tf.equal(tf.strings.substr(head, 0, 16), _PNG)
    is_png &= tf.equal(tf.strings.length(head), 24)
    is_jpeg = tf.equal(tf.strings.substr(head, 0, 3), _JPEG)
    sides = tf.case(
        [
            (
                is_png,
                lambda: tf.io.decode_raw(head, tf.int32, little_endian=False)[4:],
            ),
            (is_jpeg, lambda: tf.image.extract_jpeg_shape(data, tf.int32)[:2]),
        ],
        default=lambda: tf.zeros([2], tf.int32),
    )
    return tf.reduce_prod(tf.cast(sides, tf.int64))


def decode_image(data):
    """Decodes a JPEG or PNG: uint8 `[height, width, 3]`. See `count_pixels` first."""
    image = tf.io.decode_image(data, channels=3, expand_animations=False)
    return tf.ensure_shape(image, [None, None, 3])


class _Images:
    """Decodes the examples of `encoded`, in both sources."""

    def read(self, split):
        return self.encoded(split).map(self._decode, num_parallel_calls=_AUTOTUNE)

    def _decode(self, example):
        # TensorFlow's own error would not name the image; only a dataset can catch it.
        data = tf.data.Dataset.from_tensors(example["image"])
        nothing = tf.zeros([0, 0, 3], tf.uint8), tf.constant(0, tf.int64)
        nothing = tf.data.Dataset.from_tensors(nothing)
        decoded = data.map(_image_and_pixels).ignore_errors().concatenate(nothing)
        image, pixels = decoded.take(1).get_single_element()
        where = example.get("where", tf.constant(f"in {self.name}"))
        damaged = tf.strings.join(
            ["An image cannot be decoded: ", where, ". Replace or remove it."]
        )
        number = tf.strings.as_string(pixels)
        most = f" pixels, more than {MAX_PIXELS}: "
        too_large = tf.strings.join(
            ["An image has ", number, most, where, ". Shrink or remove it."]
        )
        message = tf.where(pixels > MAX_PIXELS, too_large, damaged)
        with tf.control_dependencies([fail_unless(tf.size(image) > 0, message)]):
            label = tf.cast(example["label"], tf.int32)
            return {"image": tf.identity(image), "label": label}

    def _check_split(self, split):
        if split not in self.splits:
            raise UserError(
                f"{self.name} has no split {split!r}. It has: {', '.join(self.splits)}."
            )


def _image_and_pixels(data):
    """Returns the image, empty if it has too many pixels, and their number."""
    pixels = count_pixels(data)
    image = tf.cond(
        (0 < pixels) & (pixels <= MAX_PIXELS),
        lambda: decode_image(data),
        lambda: tf.zeros([0, 0, 3], tf.uint8),
    )
    return tf.ensure_shape(image, [None, None, 3]), pixels


class ImageFolder(_Images):
    """JPEG and PNG files, `<directory>/<split>/<class>/<file>`.

    Classes are numbered in the order of their names, over all splits. The n-th example
    drawn is a function of seed and n: a checkpoint of an iterator needs no images.

    Raises a ValueError if there is no such folder, or no class in it. The methods raise
    one for an unknown split, a split without images, or an image, by name, that cannot
    be decoded or has more than `MAX_PIXELS` pixels.
    """

    def __init__(self, directory: Located):
        self.directory = directory = locate(directory)
        self.name = os.path.basename(os.path.normpath(directory))
        if not tf.io.gfile.isdir(directory):
            raise UserError(f"There is no folder of images {directory!r}.")
        self.splits = _folders(directory)
        names = (_folders(os.path.join(directory, split)) for split in self.splits)
        self.class_names = sorted(set().union(*names))
        if not self.class_names:
            raise UserError(
                f"{directory} holds no classes. Expected the images of a class in "
                f"{os.path.join(directory, '<split>', '<class>')}, such as "
                "train/cat/1.jpg."
            )

    def num_examples(self, split):
        """Returns the number of images of a split."""
        return len(self._list(split)[0])

    def encoded(self, split):
        examples = tf.data.Dataset.from_tensor_slices(self._list(split))
        return examples.map(_read_file, num_parallel_calls=_AUTOTUNE)

    def draw(self, split, seed=0, shard_info=None, start=0):
        paths, labels = map(tf.constant, self._list(split))
        count = len(paths)

        def draw_example(number):
            place = tf.random.experimental.index_shuffle(
                number % count, tf.stack([seed, number // count]), count - 1
            )
            return self._decode(_read_file(paths[place], labels[place]))

        host = shard_info or seqio.ShardInfo(index=0, num_shards=1)
        first = host.index + start * host.num_shards
        numbers = tf.data.Dataset.range(first, tf.int64.max, host.num_shards)
        return numbers.map(draw_example, num_parallel_calls=_AUTOTUNE)

    def _list(self, split):
        """Returns the paths of a split's images and their labels, two lists."""
        self._check_split(split)
        paths, labels = [], []
        for label, name in enumerate(self.class_names):
            folder = os.path.join(self.directory, split, name)
            if tf.io.gfile.isdir(folder):
                files = sorted(tf.io.gfile.listdir(folder))
                files = [f for f in files if f.lower().endswith(_ENDINGS)]
                paths += [os.path.join(folder, file) for file in files]
                labels += [label] * len(files)
        if not paths:
            raise UserError(
                f"{os.path.join(self.directory, split)} holds no images: no file of "
                f"its classes ends in {', '.join(_ENDINGS)}."
            )
        return paths, labels


@contextlib.contextmanager
def _known_features():
    """TFDS may not import other modules than its own that a dataset's files name."""
    import tensorflow_datasets as tfds  # late: `remixer_tf.imports`

    connector = tfds.features.FeatureConnector
    find = connector.cls_from_name

    def find_known(name):
        own = name.startswith("tensorflow_datasets.")
        if not own and name not in connector._registered_features:
            raise UserError(
                f"The dataset has a feature {name!r:.200}, which is not TensorFlow "
                "Datasets' own. Import its module first, if you trust it: "
                "--module_import=MODULE."
            )
        return find(name)

    with mock.patch.object(connector, "cls_from_name", find_known):
        yield


class TfdsImages(_Images):
    """A dataset of TensorFlow Datasets that is prepared on this machine.

    Nothing is downloaded. Files are shuffled, and examples in a buffer. Raises a
    ValueError if the dataset is unknown, not prepared, or has other features; the
    methods raise one for an unknown split.

    Args:
        name: str, such as "imagenet2012"; it must have the features image and label.
        data_dir: str; None for TFDS_DATA_DIR, or `~/tensorflow_datasets`.
        shuffle_buffer_size: int, examples.
    """

    @checked
    def __init__(
        self,
        name: Text,
        data_dir: Path | None = None,
        shuffle_buffer_size: PositiveInt = 10_000,
    ):
        self.name = name.partition(":")[0].partition("/")[0]
        self.shuffle_buffer_size = shuffle_buffer_size
        import tensorflow_datasets as tfds

        try:
            with _known_features():
                self._builder = tfds.builder(name, data_dir=data_dir)
        except tfds.core.registered.DatasetNotFoundError as error:
            raise UserError(
                f"TensorFlow Datasets knows no dataset {name!r}: {error}"
            ) from None
        self.splits = sorted(self._builder.info.splits)
        if not self.splits:
            raise UserError(
                f"{name} is not prepared: there is nothing in "
                f"{self._builder.data_dir}. Run `tfds build {name}`, where there is a "
                "network, or set data_dir to where it is."
            )
        features = self._builder.info.features
        missing = {"image", "label"} - set(features)
        if missing:
            raise UserError(
                f"A classifier reads the features image and label. {name} has: "
                f"{', '.join(sorted(features))}."
            )
        self.class_names = features["label"].names

    def num_examples(self, split):
        """Returns the number of images of a split."""
        self._check_split(split)
        return self._builder.info.splits[split].num_examples

    def draw(self, split, seed=0, shard_info=None, start=0):
        host = shard_info or seqio.ShardInfo(index=0, num_shards=1)
        count = self.num_examples(split)
        if count < host.num_shards:
            raise UserError(
                f"{self.name} has {count} images of split {split!r}, fewer than the "
                f"{host.num_shards} hosts that share them. Use fewer hosts."
            )
        per_epoch = len(range(host.index, count, host.num_shards))
        first_epoch, left_out = divmod(start, per_epoch)

        @tf.autograph.experimental.do_not_convert  # TFDS cannot be, and warns
        def read_epoch(number):
            # For this function's graph: TensorFlow would mix in the process's seed.
            tf.random.set_seed(1)
            seeds = Seeds(seed, number)
            examples = self.encoded(split, shuffle_files=True, seed=seeds.next()[0])
            examples = examples.shard(host.num_shards, host.index)
            examples = examples.shuffle(
                self.shuffle_buffer_size,
                seed=seeds.next()[0],
                reshuffle_each_iteration=False,
            )
            return examples.skip(left_out * tf.cast(number == first_epoch, tf.int64))

        epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
        examples = epochs.flat_map(read_epoch)
        return examples.map(self._decode, num_parallel_calls=_AUTOTUNE)

    def encoded(self, split, shuffle_files=False, seed=None):
        import tensorflow_datasets as tfds

        self._check_split(split)
        return self._builder.as_dataset(
            split=split,
            shuffle_files=shuffle_files,
            decoders={"image": tfds.decode.SkipDecoding()},
            read_config=tfds.ReadConfig(
                shuffle_seed=seed,
                shuffle_reshuffle_each_iteration=False,
                try_autocache=False,
            ),
        )


def _folders(directory):
    names = (name.rstrip("/") for name in tf.io.gfile.listdir(directory))
    return sorted(n for n in names if tf.io.gfile.isdir(os.path.join(directory, n)))


def _read_file(path, label):
    return {"image": tf.io.read_file(path), "label": label, "where": path}
