"""Images: where they come from, what is random about them, and exact continuation."""

import functools
import json
import os

import keras
import numpy as np
import pytest
import seqio
import tensorflow as tf

from remixer_tf.data import augmentation
from remixer_tf.data.augmentation import Seeds
from remixer_tf.data.failures import data_errors
from remixer_tf.data.image_sources import ImageFolder, TfdsImages
from remixer_tf.data.images import eval_images, image_dataset
from remixer_tf.errors import UserError
from tests.data.stress_iterators import live_shortly, take
from tests.data.toy_images import (
    COLORS,
    jpeg_with_sides,
    make_folder,
    png_header,
    prepare_tfds,
)

SIZE = 8
CENTER = functools.partial(augmentation.resize_and_center_crop, image_size=SIZE)
CROP = functools.partial(augmentation.random_resized_crop, image_size=SIZE)
PLAIN = [CENTER, augmentation.normalize]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("colors"), {"train": 5, "val": 2})


@pytest.fixture(scope="module")
def prepared(folder, tmp_path_factory):
    return prepare_tfds(folder, tmp_path_factory.mktemp("tfds"))


@pytest.fixture(params=["folder", pytest.param("tfds", marks=pytest.mark.slower)])
def source(request, folder, prepared):
    if request.param == "folder":
        return ImageFolder(folder)
    return TfdsImages(**prepared, shuffle_buffer_size=7)


@pytest.mark.slow
def test_batches_of_colours(source):
    dataset = image_dataset(source, PLAIN, batch_size=6, steps_per_call=2)
    shapes = {k: (v.shape.as_list(), v.dtype) for k, v in dataset.element_spec.items()}
    assert shapes == {
        "images": ([2, 6, SIZE, SIZE, 3], tf.float32),
        "labels": ([2, 6, 1], tf.int32),
        "label_weights": ([2, 6, 1], tf.float32),
    }
    assert source.class_names == sorted(COLORS)
    assert source.num_examples("train") == 15
    mean, std = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
    for element in take(dataset, 4):
        assert (element["label_weights"] == 1).all()
        colors = np.array([COLORS[c] for c in source.class_names])[element["labels"]]
        means = element["images"].mean((2, 3))  # the noise is even within 20
        np.testing.assert_allclose(means * std + mean, colors[:, :, 0], atol=8)


def test_each_epoch_sees_every_image_once_in_another_order(source):
    dataset = source.draw("train", seed=3)
    images = [e["image"].tobytes() for e in take(dataset, 45)]
    epochs = [images[i : i + 15] for i in (0, 15, 30)]
    assert len(set(epochs[0])) == 15
    assert set(epochs[0]) == set(epochs[1]) == set(epochs[2])
    assert epochs[0] != epochs[1] and epochs[1] != epochs[2]
    again = take(source.draw("train", seed=3), 45)
    assert images == [e["image"].tobytes() for e in again]
    other = take(source.draw("train", seed=4), 15)
    assert images[:15] != [e["image"].tobytes() for e in other]


@pytest.mark.slow
def test_hosts_share_an_epoch(source):
    parts = [
        take(source.draw("train", 0, seqio.ShardInfo(index=i, num_shards=3)), 5)
        for i in range(3)
    ]
    images = [example["image"].tobytes() for part in parts for example in part]
    assert len(set(images)) == 15
    batch = take(
        image_dataset(
            source, PLAIN, batch_size=6, shard_info=seqio.ShardInfo(1, num_shards=3)
        ),
        1,
    )[0]
    assert batch["images"].shape == (1, 2, SIZE, SIZE, 3)
    with pytest.raises(ValueError, match="4 examples does not divide among 3 hosts"):
        image_dataset(source, PLAIN, batch_size=4, shard_info=seqio.ShardInfo(0, 3))


def augmented(source, **kwargs):
    augment = augmentation.RandAugment()
    # Each is a branch twice, and each has a test below.
    augment.operations = augment.operations[2::5]
    return image_dataset(
        source,
        [CROP, augmentation.random_flip, augment],
        mixing=[keras.layers.MixUp(alpha=0.8), keras.layers.CutMix(factor=(1.0, 1.0))],
        batch_size=4,
        steps_per_call=2,
        **kwargs,
    )


@pytest.mark.slow
def test_a_restored_iterator_goes_on_exactly(source, tmp_path):
    dataset = augmented(source)
    iterator = iter(dataset)
    for _ in range(3):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "c"))
    expected = [next(iterator) for _ in range(4)]
    restored = iter(dataset)
    next(restored)
    tf.train.Checkpoint(iterator=restored).restore(path).assert_consumed()
    for batch in expected:
        for name, value in next(restored).items():
            np.testing.assert_array_equal(value, batch[name], err_msg=name)
    # No images: those of one element alone take 6,144 bytes.
    assert sum(os.path.getsize(tmp_path / f) for f in os.listdir(tmp_path)) < 6_144


@pytest.mark.slow
def test_short_lived_iterators(source):
    live_shortly(source, rounds=8)


@pytest.mark.slow
def test_seeds_differ_between_epochs_and_runs(folder):
    source = ImageFolder(folder)
    images = np.concatenate([e["images"][0] for e in take(augmented(source), 15)])
    assert len({image.tobytes() for image in images}) == len(images)
    other = take(augmented(source, seed=1), 1)[0]["images"][0]
    assert (other != images[:4]).any()


@pytest.mark.parametrize(
    "layer", [keras.layers.MixUp(alpha=0.8), keras.layers.CutMix(factor=(1.0, 1.0))]
)
def test_mixed_labels_are_the_shares_of_the_images(layer, folder):
    source = ImageFolder(folder)
    dataset = image_dataset(source, [CENTER], mixing=[layer], batch_size=8)
    (spec,) = {
        v.shape.as_list()[-1] for k, v in dataset.element_spec.items() if k == "labels"
    }
    assert spec == 3
    colors = np.array([COLORS[name] for name in source.class_names])
    shares = []
    for element in take(dataset, 3):
        labels = element["labels"][0, :, 0]
        np.testing.assert_allclose(labels.sum(-1), 1, rtol=1e-6)
        assert (labels >= 0).all()
        mean = element["images"][0].mean((1, 2))
        np.testing.assert_allclose(mean, labels @ colors, atol=8)
        shares.append(labels.max(-1))
    assert (np.concatenate(shares) < 0.95).any()


def test_labels_of_cutmix_count_pixels():
    labels = tf.eye(3)
    images = tf.broadcast_to(labels[:, None, None], [3, 7, 5, 3])
    layer = keras.layers.CutMix(factor=(1.0, 1.0))
    for number in range(5):
        mixed, shares = augmentation.mix(layer, images, labels, Seeds(number))
        np.testing.assert_allclose(tf.reduce_mean(mixed, [1, 2]), shares, atol=1e-6)


@pytest.mark.slow
def test_each_operation_is_a_function_of_the_seed():
    image = tf.random.stateless_uniform([9, 7, 3], [1, 2], 0, 255)
    operations = augmentation.RandAugment().operations
    assert len(operations) == 14
    for operation in operations:
        dataset = tf.data.Dataset.range(6).map(
            lambda i, op=operation: augmentation._apply(op, image, Seeds(i))
        )
        first, second = take(dataset, 6), take(dataset, 6)
        np.testing.assert_array_equal(first, second, err_msg=operation.name)
        assert dataset.element_spec.shape.as_list() == [9, 7, 3]
        assert np.min(first) >= 0 and np.max(first) <= 255, operation.name
        changed = [(x != image.numpy()).any() for x in first]
        assert all(changed), operation.name


def test_flip_and_crops():
    image = tf.reshape(tf.range(40 * 80 * 3, dtype=tf.float32), [40, 80, 3]) / 40
    flipped = [augmentation.random_flip(image, Seeds(i)).numpy() for i in range(20)]
    mirrored = [(x == image[:, ::-1].numpy()).all() for x in flipped]
    assert 4 < sum(mirrored) < 16
    same = [(x == image.numpy()).all() for x in flipped]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    crops = [augmentation.random_resized_crop(image, Seeds(i), 8) for i in range(20)]
    assert {tuple(x.shape) for x in crops} == {(8, 8, 3)}
    assert len({x.numpy().tobytes() for x in crops}) == 20
    # The middle 35 x 35 of 40 x 80 pixels, as 14 x 14; values grow evenly.
    center = augmentation.resize_and_center_crop(image, None, 14)
    np.testing.assert_allclose(
        tf.reduce_mean(center), tf.reduce_mean(image[2:38, 22:58]), rtol=1e-3
    )
    assert center.shape == (14, 14, 3)
    whole = augmentation.resize_and_center_crop(image[:, :40], None, 40, share=1.0)
    np.testing.assert_allclose(whole, tf.clip_by_value(image[:, :40], 0, 255))


@pytest.mark.parametrize(
    "height, width, size, share, first, last",
    [
        (40, 57, 16, 0.875, (3, 10), (36, 44)),
        (57, 40, 16, 0.875, (10, 3), (44, 36)),
        (12, 9, 16, 0.875, (2, 0), (9, 8)),
        (33, 100, 24, 0.9, (1, 35), (31, 64)),
        (375, 500, 32, 0.9, (26, 81), (358, 418)),
        (31, 90, 21, 1.0, (0, 30), (30, 60)),
        (40, 57, 16, 16 / 18, (3, 10), (36, 44)),
        (20, 30, 16, 1.25, (0, 5), (19, 24)),  # the largest share is 1
    ],
)
def test_the_middle_is_torchvisions(height, width, size, share, first, last):
    """The pixels at two corners of Resize(floor(size / share)), CenterCrop(size)."""
    places = np.stack(np.mgrid[:height, :width], axis=-1) / 2
    image = np.pad(places, [(0, 0), (0, 0), (0, 1)]).astype("float32")
    crop = functools.partial(augmentation.resize_and_center_crop, method="nearest")
    found = crop(image, None, size, share).numpy()[:, :, :2] * 2
    assert (*found[0, 0], *found[-1, -1]) == (*first, *last)


def test_evaluation_sees_every_image_once(source):
    split = "train"
    batches = take(eval_images(source, PLAIN, batch_size=4, split=split), None)
    assert [b["images"].shape for b in batches] == [(4, SIZE, SIZE, 3)] * 4
    weights = np.concatenate([b["label_weights"][:, 0] for b in batches])
    labels = np.concatenate([b["labels"][:, 0] for b in batches])
    np.testing.assert_array_equal(weights, [1] * 15 + [0])
    np.testing.assert_array_equal(labels, [0] * 5 + [1] * 5 + [2] * 5 + [0])


def test_transforms_must_give_one_size(folder):
    with pytest.raises(ValueError, match="let random_resized_crop or"):
        image_dataset(ImageFolder(folder), [augmentation.normalize], batch_size=2)


def test_a_users_error_in_a_transform_stays_one_line(folder):
    """AutoGraph rewrites others, with the lines of the code that it made."""

    def wrong(image, seeds):
        if image.shape[-1] != 1:
            raise UserError("Only for images of one channel.")
        return image

    with pytest.raises(UserError, match=r"^Only for images of one channel\.$"):
        image_dataset(ImageFolder(folder), [wrong, *PLAIN], batch_size=2)


def test_an_image_that_cannot_be_decoded_is_named(tmp_path):
    directory = make_folder(tmp_path, {"train": 2})
    source = ImageFolder(directory)
    path = tmp_path / "train" / "green" / "1.jpg"
    for content in (b"", b"no image", path.read_bytes()[:300]):
        path.write_bytes(content)
        for dataset in (
            image_dataset(source, PLAIN, batch_size=6),
            eval_images(source, PLAIN, batch_size=6, split="train"),
        ):
            with pytest.raises(ValueError) as error, data_errors():
                take(dataset, 1)
            assert str(error.value) == (
                f"An image cannot be decoded: {path}. Replace or remove it."
            )


def test_an_image_of_gigabytes_is_not_decoded(tmp_path):
    """Its header tells: nothing of its size is taken."""
    directory = make_folder(tmp_path, {"train": 2})
    jpeg, png = (tmp_path / "train" / "green" / name for name in ("1.jpg", "0.png"))
    whole = jpeg.read_bytes()
    for path, content in (
        (jpeg, jpeg_with_sides(whole, 60_000, 50_000)),
        (jpeg, png_header(60_000, 50_000)),
        (png, png_header(60_000, 50_000) + png.read_bytes()[24:]),
    ):
        before = path.read_bytes()
        path.write_bytes(content)
        dataset = eval_images(
            ImageFolder(directory), PLAIN, batch_size=6, split="train"
        )
        with pytest.raises(ValueError) as error, data_errors():
            take(dataset, 1)
        assert str(error.value) == (
            "An image has 3000000000 pixels, more than 67108864: "
            f"{path}. Shrink or remove it."
        )
        path.write_bytes(before)


def test_folders_that_are_no_source(tmp_path):
    with pytest.raises(ValueError, match="There is no folder of images '/no/where'"):
        ImageFolder("/no/where")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "1.jpg").write_bytes(b"x")
    with pytest.raises(ValueError, match="holds no classes. Expected the images of"):
        ImageFolder(str(tmp_path))
    (tmp_path / "train" / "cat").mkdir()
    with pytest.raises(ValueError, match="train holds no images: no file of its cl"):
        ImageFolder(str(tmp_path)).draw("train")
    with pytest.raises(ValueError, match="has no split 'dev'. It has: train"):
        ImageFolder(str(tmp_path)).read("dev")


def test_tfds_imports_no_module_that_a_dataset_names(tmp_path, monkeypatch):
    home = tmp_path / "foo" / "1.0.0"
    home.mkdir(parents=True)
    features = {"pythonClassName": "a_strangers.Image"}
    (home / "features.json").write_text(json.dumps(features))
    info = {"name": "foo", "version": "1.0.0", "fileFormat": "tfrecord"}
    (home / "dataset_info.json").write_text(json.dumps(info))
    (tmp_path / "a_strangers.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="a feature 'a_strangers.Image'.*--module_imp"):
        TfdsImages("foo", data_dir=str(tmp_path))
    assert not (tmp_path / "ran").exists()


def test_tfds_that_cannot_be_read(tmp_path, prepared):
    with pytest.raises(ValueError, match="knows no dataset 'no_such'"):
        TfdsImages("no_such", data_dir=str(tmp_path))
    with pytest.raises(ValueError, match="mnist is not prepared.*`tfds build mnist`"):
        TfdsImages("mnist", data_dir=str(tmp_path))
    with pytest.raises(ValueError, match="colors has no split 'dev'. It has: train"):
        TfdsImages(**prepared).draw("dev")
