"""Transforms of one image, and the random numbers for them.

A transform is a function of an image, float32 [height, width, 3], and its `Seeds`; it
returns the image for the next one. Values lie in [0, 255] until `normalize`.
"""

import math
from typing import Annotated

import keras
import tensorflow as tf

from remixer_tf.arguments import (
    NonNegativeInt,
    Numbers,
    PositiveFloat,
    PositiveInt,
    Tensor,
    checked,
    one_of,
)
from remixer_tf.errors import UserError, check_range

_GRAY = 128.0
METHODS = tuple(x for name, x in vars(tf.image.ResizeMethod).items() if name.isupper())


class Seeds(keras.random.SeedGenerator):
    """The seeds of one example (or batch), the same whenever it is read.

    Keras' preprocessing layers have a seed that counts their calls: a restored iterator
    would continue with other numbers. They accept any `SeedGenerator` in its place, and
    this one has no state. `numbers` are ints or int64 scalars that identify the
    example.
    """

    def __init__(self, *numbers):
        self._seed = tf.zeros([2], tf.int64)
        for number in numbers:
            self._seed = _fold_in(self._seed, number)
        self._count = 0

    def next(self, ordered=True):
        """Returns int64 [2], another at each call; for `tf.random.stateless_*`."""
        self._count += 1
        return _fold_in(self._seed, self._count)


def _fold_in(seed, number):
    return tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int64))


def _check_area(name, value):
    if len(value) != 2 or not 0 < value[0] <= value[1] <= 1:
        raise UserError(
            f"{name} must be the least and the largest share of an image's area, two "
            f"numbers above 0 and up to 1. Received: {name}={value!r:.200}"
        )


@checked
def random_resized_crop(
    image: Tensor,
    seeds: Seeds,
    image_size: PositiveInt,
    area: Annotated[Numbers, _check_area] = (0.08, 1.0),
):
    """A random part of the image, stretched to a square (Inception's crop).

    Its area is a random share of the image's, between the two numbers of `area`, its
    aspect ratio lies in [3/4, 4/3]. `image_size` is the side of the square in pixels.
    """
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(image),
        tf.zeros([1, 0, 4]),
        seed=seeds.next(),
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=area,
        use_image_if_no_bounding_boxes=True,
    )
    return _resize(tf.slice(image, begin, size), [image_size, image_size])


@checked
def resize_and_center_crop(
    image: Tensor,
    seeds: Seeds,
    image_size: PositiveInt,
    share: PositiveFloat = 0.875,
    method: Annotated[str, one_of(METHODS)] = "bicubic",
    squash: bool = False,
):
    """The middle of the image, for evaluation: nothing is random.

    Sizes and the cut are those of torchvision and timm (`Resize`, `CenterCrop`). The
    shorter side becomes `floor(image_size / share)` pixels. Half a pixel of the cut is
    rounded to an even number.

    Args:
        image, seeds: see the module.
        image_size: int, side of the square that is cut out.
        share: float above 0, of the image's shorter side.
        method: str, one of `METHODS`, those of `tf.image.resize`.
        squash: bool, whether the image is first stretched to a square.
    """
    # 14 / (14 / 25) is below 25.
    side = max(image_size, math.floor(image_size / share + 1e-6))
    shape = tf.shape(image)[:2]
    size = [side, side] if squash else side * shape // tf.reduce_min(shape)
    image = _resize(image, size, method)
    rest = (tf.shape(image)[:2] - image_size) / 2
    top, left = tf.unstack(tf.cast(tf.round(rest), tf.int32))
    image = image[top : top + image_size, left : left + image_size]
    return tf.ensure_shape(image, [image_size, image_size, 3])


def _resize(image, size, method="bicubic"):
    image = tf.ensure_shape(image, [None, None, 3])
    image = tf.image.resize(image, size, method=method, antialias=True)
    return tf.clip_by_value(image, 0.0, 255.0)  # A bicubic overshoots.


def random_flip(image, seeds):
    """The image, or its mirror image with probability 1/2."""
    return tf.image.stateless_random_flip_left_right(image, seed=seeds.next())


class RandAugment:
    """`num_operations` operations, an int, each drawn from a list (Cubuk et al. 2020).

    The fourteen operations are Keras' layers, each at a random strength up to about
    magnitude 9 of 10. `keras.layers.RandAugment` computes all of its operations on
    every image and takes one of them. It rotates and shifts with the same strength as
    it changes colours.
    """

    @checked
    def __init__(self, num_operations: NonNegativeInt = 2):
        self.num_operations = num_operations
        layers = keras.layers
        options = {"dtype": "float32"}
        filled = {**options, "fill_mode": "constant", "fill_value": _GRAY}
        self.operations = [
            layers.AutoContrast(**options),
            layers.Equalization(**options),
            layers.RandomInvert(factor=(1.0, 1.0), **options),
            layers.RandomPosterization(factor=4, **options),
            layers.Solarization(threshold_factor=1.0, **options),
            layers.RandomColorDegeneration(factor=0.8, **options),
            layers.RandomContrast(factor=0.8, **options),
            layers.RandomBrightness(factor=0.4, **options),
            layers.RandomSharpness(factor=0.8, **options),
            layers.RandomRotation(factor=27 / 360, **filled),
            layers.RandomShear(x_factor=0.27, **filled),
            layers.RandomShear(y_factor=0.27, **filled),
            layers.RandomTranslation(height_factor=0.0, width_factor=0.4, **filled),
            layers.RandomTranslation(height_factor=0.4, width_factor=0.0, **filled),
        ]

    def __call__(self, image, seeds):
        for _ in range(self.num_operations):
            image = choose(
                seeds,
                [lambda x=image, op=op: _apply(op, x, seeds) for op in self.operations],
            )
        return image


def _apply(layer, image, seeds):
    images = image[None]
    transformation = layer.get_random_transformation(images, training=True, seed=seeds)
    images = layer.transform_images(images, transformation, training=True)
    return tf.ensure_shape(images[0], image.shape)


def choose(seeds, functions):
    """Calls one of the functions, drawn evenly, and returns its result."""
    count = len(functions)
    choice = tf.random.stateless_uniform([], seeds.next(), 0, count, tf.int32)
    return tf.switch_case(choice, functions)


def _check_channels(name, value):
    if len(value) != 3:
        raise UserError(
            f"{name} must be 3 numbers, for red, green and blue. Received: "
            f"{name}={value!r:.200}"
        )


def _check_deviations(name, value):
    for number in value:
        check_range(name, number, "numbers above 0", lambda x: x > 0)


@checked
def normalize(
    image: Tensor,
    seeds: Seeds,
    mean: Annotated[Numbers, _check_channels] = (123.675, 116.28, 103.53),
    std: Annotated[Numbers, _check_channels, _check_deviations] = (
        58.395,
        57.12,
        57.375,
    ),
):
    """`(image - mean) / std` for each of the 3 channels; the defaults are ImageNet's.

    A `std` that is not above 0 is a UserError.
    """
    return (image - tf.constant(mean, tf.float32)) / tf.constant(std, tf.float32)


def mix(layer, images, labels, seeds):
    """Applies `keras.layers.MixUp` or `CutMix` to a batch, with its `Seeds`.

    CutMix's labels have the shares of the pixels (Yun et al. 2019, section 3.1).
    Images are float32 [batch, height, width, 3], labels [batch, classes].
    """
    transformation = layer.get_random_transformation(
        {"images": images}, training=True, seed=seeds
    )
    if isinstance(layer, keras.layers.CutMix):
        # Keras takes the area of a box that ends between pixels.
        pasted = tf.cast(transformation["batch_masks"], tf.float32)
        transformation["mix_weight"] = 1 - tf.reduce_mean(pasted, axis=[1, 2, 3])
    return (
        layer.transform_images(images, transformation, training=True),
        layer.transform_labels(labels, transformation, training=True),
    )
