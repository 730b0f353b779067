"""From images to batches for training and evaluation.

With 2 steps per call, batches of 8 and images of 224 x 224 pixels, an element is

    {"images": float32 [2, 8, 224, 224, 3],
     "labels": int32 [2, 8, 1], or float32 [2, 8, 1, classes] if images are mixed,
     "label_weights": float32 [2, 8, 1]}
"""

import hashlib
from typing import Annotated, Any

import keras
import seqio
import tensorflow as tf

from remixer_tf.arguments import (
    Check,
    Functions,
    Integer,
    PositiveInt,
    Text,
    checked,
)
from remixer_tf.data.augmentation import Seeds, choose, mix
from remixer_tf.data.kinds import ShardInfo
from remixer_tf.data.pipeline import Batching
from remixer_tf.errors import UserError, check_range

_TRANSFORMS, _MIXING = 0, 1  # the uses of `Seeds`
_NAMES = ("images", "labels", "label_weights")


def _check_source(name, value):
    if not hasattr(value, "draw") or not hasattr(value, "read"):
        raise UserError(
            f"{name} must be an ImageFolder or TfdsImages. Received: "
            f"{name}={value!r:.200}"
        )


def _check_mixing(name, value):
    for layer in value:
        if isinstance(layer, keras.layers.MixUp):
            check_range("MixUp.alpha", layer.alpha, "a number above 0", lambda x: x > 0)
        elif isinstance(layer, keras.layers.CutMix):
            for factor in layer.factor:
                expected = "one or two numbers in [0, 1]"
                check_range("CutMix.factor", factor, expected, lambda x: 0 <= x <= 1)
        else:
            raise UserError(
                f"{name} must be a list of keras.layers.MixUp and keras.layers.CutMix "
                f"(in gin: [@MixUp(), @CutMix()]). Received: {name}={value!r:.200}"
            )


Source = Annotated[Any, Check("source", _check_source)]


@checked
def image_dataset(
    source: Source,
    transforms: Functions,
    *,
    batch_size,
    split: Text = "train",
    mixing: Annotated[Functions, _check_mixing] = (),
    seed: Integer = 0,
    steps_per_call: PositiveInt = 1,
    shard_info: ShardInfo | None = None,
):
    """Endless batches of a split, a `PositionDataset` of static shapes, see the module.

    Random numbers follow from the seed and the example's number: equal arguments give
    equal batches. An iterator saved in `tf.train.Checkpoint(iterator=...)` continues
    with the next batch. The checkpoint holds a number and no images.

    Args:
        source: an `ImageFolder` or `TfdsImages`.
        transforms: list of functions of an image, see `data.augmentation`.
        batch_size: int, images per step, on all hosts together.
        split: str.
        mixing: list of `keras.layers.MixUp` and `keras.layers.CutMix`; each batch goes
            through one of them, drawn evenly.
        seed, steps_per_call, shard_info: see `train_dataset`.

    Raises a ValueError for an unknown split, transforms that do not give images of one
    size, or a batch that does not divide among the hosts.
    """
    host = shard_info or seqio.ShardInfo(index=0, num_shards=1)
    batch_of_host = Batching(batch_size).host_batch_size(host.num_shards)

    def mix_batch(number, batch):
        seeds = Seeds(seed, _MIXING, number * host.num_shards + host.index)
        images, labels, weights = (batch[name] for name in _NAMES)
        labels = tf.one_hot(labels[:, 0], len(source.class_names))
        images, labels = choose(
            seeds,
            [lambda layer=layer: mix(layer, images, labels, seeds) for layer in mixing],
        )
        return dict(zip(_NAMES, (images, labels[:, None], weights), strict=True))

    def read_from(start):
        batches = start * steps_per_call
        first = batches * batch_of_host
        dataset = source.draw(split, seed=seed, shard_info=shard_info, start=first)
        dataset = dataset.enumerate(first)
        dataset = _transform(dataset, transforms, seed, host)
        dataset = dataset.batch(batch_of_host, drop_remainder=True)
        if mixing:
            dataset = dataset.enumerate(batches).map(mix_batch, num_parallel_calls=2)
        dataset = dataset.batch(steps_per_call, drop_remainder=True)
        options = tf.data.Options()
        options.deterministic = True
        return dataset.with_options(options).prefetch(2)

    return PositionDataset(read_from)


@checked
def eval_images(
    source: Source,
    transforms: Functions,
    *,
    batch_size: PositiveInt,
    split: Text = "validation",
):
    """Batches of a split, every image once, in order; the last batch is filled up.

    For arguments and errors see `image_dataset`. Batches are dictionaries [batch_size,
    ...], see the module, with int32 labels. Images that fill up the last one have
    weight 0.
    """
    dataset = _transform(source.read(split).enumerate(), transforms)
    nothing = {k: tf.zeros(x.shape, x.dtype) for k, x in dataset.element_spec.items()}
    missing = -source.num_examples(split) % batch_size
    filling = tf.data.Dataset.from_tensors(nothing).repeat(missing)
    dataset = dataset.concatenate(filling)
    return dataset.batch(batch_size, drop_remainder=True).prefetch(2)


def hash_images(source, split):
    """Returns a hash of a split's images, as they are encoded, and of their labels."""
    digest = hashlib.sha256()
    for example in source.encoded(split).as_numpy_iterator():
        digest.update(f"{example['label']} {len(example['image'])} ".encode())
        digest.update(example["image"])
    return digest.hexdigest()[:16]


def _transform(dataset, transforms, seed=0, host=None):
    """Makes examples of batches from (number, example) pairs."""
    host = host or seqio.ShardInfo(index=0, num_shards=1)

    def make(number, example):
        seeds = Seeds(seed, _TRANSFORMS, number * host.num_shards + host.index)
        image = tf.cast(example["image"], tf.float32)
        for transform in transforms:
            image = transform(image, seeds)
        labels = example["label"][None]
        return {"images": image, "labels": labels, "label_weights": [1.0]}

    dataset = dataset.map(make, num_parallel_calls=tf.data.AUTOTUNE)
    shape = dataset.element_spec["images"].shape
    if not shape.is_fully_defined():
        raise UserError(
            f"The transforms give images of shape {shape}. A batch needs images "
            "of one size: let random_resized_crop or resize_and_center_crop be among "
            "the transforms."
        )
    return dataset


class PositionDataset:
    """An endless dataset that starts anywhere; a checkpoint of it is one number.

    A checkpoint of tf.data's own iterator holds all that was read ahead, here images.
    An experimental option prevents that, but then short-lived iterators crash the
    process. `make(start)` returns the `tf.data.Dataset` of the elements number start,
    start + 1, ...
    """

    def __init__(self, make):
        self._make = make
        self._from_zero = make(0)
        self.element_spec = self._from_zero.element_spec

    def read_from(self, start):
        """Returns `make(start)`."""
        return self._make(start) if start else self._from_zero

    def __iter__(self):
        return _Iterator(self)


class _Iterator(tf.Module):
    """Can be saved in `tf.train.Checkpoint(iterator=...)`, and restored at any time."""

    def __init__(self, dataset):
        super().__init__()
        self._dataset = dataset
        self.element_spec = dataset.element_spec
        with tf.device("CPU"):
            self._position = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._prepared = None  # the position of the element that `_read` gives next

    def __iter__(self):
        return self

    def __next__(self):
        position = int(self._position)
        if position != self._prepared:  # The first element, or restored.
            # The bound method, since a checkpoint would hold the iterator itself.
            self._read = iter(self._dataset.read_from(position)).__next__
        element = self._read()
        self._prepared = position + 1
        self._position.assign(position + 1)
        return element
