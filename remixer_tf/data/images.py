"""From images to batches for training and evaluation.

With 2 steps per call, batches of 8 and images of 224 x 224 pixels, an element is

    {"images": float32 [2, 8, 224, 224, 3],
     "labels": int32 [2, 8, 1], or float32 [2, 8, 1, classes] where images are mixed,
     "label_weights": float32 [2, 8, 1]}
"""

import hashlib

import seqio
import tensorflow as tf

from remixer_tf.data.augmentation import mix
from remixer_tf.data.positions import PositionDataset
from remixer_tf.data.seeds import Seeds
from remixer_tf.errors import UserError
from remixer_tf.layers.checks import check_integers

# What random numbers are for; see `Seeds`.
_TRANSFORMS, _MIXING = 0, 1


def image_dataset(
    source,
    transforms,
    *,
    batch_size,
    split="train",
    mixing=(),
    seed=0,
    steps_per_call=1,
    shard_info=None,
):
    """Endless batches of a split.

    Two datasets with equal arguments give equal batches: what is random about an
    example follows from the seed and the example's number. An iterator can be saved in
    `tf.train.Checkpoint(iterator=...)` at any point and then gives the batches that
    were still to come. The checkpoint holds a number and no images.

    Args:
        source: an `ImageFolder` or `TfdsImages`.
        transforms: list of functions, applied to each image in their order, see
            `remixer_tf.data.augmentation`.
        batch_size: int, images per step, on all hosts together.
        split: str.
        mixing: list of `keras.layers.MixUp` and `keras.layers.CutMix`; each batch goes
            through one of them, drawn evenly. An empty list mixes nothing.
        seed: int, of order, transforms and mixing.
        steps_per_call: int, the leading axis.
        shard_info: None, or a `seqio.ShardInfo`: the part of the examples and of the
            batch that this host reads.

    Returns:
        a `PositionDataset`, see the module; shapes are static.

    Raises:
        ValueError: an unknown split; transforms that do not give images of one size; a
            batch that does not divide among the hosts.
    """
    check_integers(batch_size=batch_size, steps_per_call=steps_per_call)
    host = shard_info or seqio.ShardInfo(index=0, num_shards=1)
    hosts = host.num_shards
    if batch_size % hosts:
        raise UserError(
            f"A batch of {batch_size} images does not divide among {hosts} hosts. Set "
            f"a batch size that is a multiple of {hosts}."
        )

    def make(number, example):
        seeds = Seeds(seed, _TRANSFORMS, number * hosts + host.index)
        return _transform(example, transforms, seeds)

    def mix_batch(number, batch):
        images, labels, weights = (batch[name] for name in _NAMES)
        seeds = Seeds(seed, _MIXING, number * hosts + host.index)
        choice = tf.random.stateless_uniform([], seeds.next(), 0, len(mixing), tf.int32)
        labels = tf.one_hot(labels[:, 0], len(source.class_names))
        images, labels = tf.switch_case(
            choice,
            [lambda layer=layer: mix(layer, images, labels, seeds) for layer in mixing],
        )
        return dict(zip(_NAMES, (images, labels[:, None], weights), strict=True))

    def read_from(start):
        batches = start * steps_per_call
        first = batches * (batch_size // hosts)
        dataset = source.draw(split, seed=seed, shard_info=shard_info, start=first)
        dataset = dataset.enumerate(first)
        dataset = _map(dataset, make)
        dataset = dataset.batch(batch_size // hosts, drop_remainder=True)
        if mixing:
            dataset = dataset.enumerate(batches).map(mix_batch, num_parallel_calls=2)
        dataset = dataset.batch(steps_per_call, drop_remainder=True)
        options = tf.data.Options()
        options.deterministic = True
        return dataset.with_options(options).prefetch(2)

    return PositionDataset(read_from)


def eval_images(source, transforms, *, batch_size, split="validation"):
    """Batches of a split, every image once, in order; the last batch is filled up.

    Takes and raises what `image_dataset` does. Batches are dictionaries [batch_size,
    ...], see the module, with int32 labels. Images that fill up the last one have
    weight 0.
    """
    check_integers(batch_size=batch_size)
    dataset = source.read(split).enumerate()
    dataset = _map(
        dataset,
        lambda number, example: _transform(
            example, transforms, Seeds(0, _TRANSFORMS, number)
        ),
    )

    def fill_up(batch):
        missing = batch_size - tf.shape(batch["labels"])[0]
        filled = {
            name: tf.pad(x, [[0, missing]] + [[0, 0]] * (x.shape.rank - 1))
            for name, x in batch.items()
        }
        return {
            name: tf.ensure_shape(x, [batch_size, *x.shape[1:]])
            for name, x in filled.items()
        }

    return dataset.batch(batch_size).map(fill_up).prefetch(2)


def hash_images(source, split):
    """Returns a hash of a split's images, as they are encoded, and of their labels."""
    digest = hashlib.sha256()
    for example in source.encoded(split).as_numpy_iterator():
        digest.update(f"{example['label']} {len(example['image'])} ".encode())
        digest.update(example["image"])
    return digest.hexdigest()[:16]


_NAMES = ("images", "labels", "label_weights")


def _transform(example, transforms, seeds):
    image = tf.cast(example["image"], tf.float32)
    for transform in transforms:
        image = transform(image, seeds)
    return {"images": image, "labels": example["label"][None], "label_weights": [1.0]}


def _map(dataset, make):
    """Applies what makes an example of images, all of one size."""
    dataset = dataset.map(make, num_parallel_calls=tf.data.AUTOTUNE)
    shape = dataset.element_spec["images"].shape
    if not shape.is_fully_defined():
        raise UserError(
            f"The transforms give images of shape {shape}. A batch needs images "
            "of one size: let random_resized_crop or resize_and_center_crop be among "
            "the transforms."
        )
    return dataset
