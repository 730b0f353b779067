"""An argument of a wrong kind is one clear line, before anything is read."""

import functools

import keras
import numpy as np
import pytest
import seqio

from remixer_tf.data import augmentation
from remixer_tf.data.augmentation import Seeds
from remixer_tf.data.caching import cached_task, write_caches
from remixer_tf.data.codec import Codec
from remixer_tf.data.epochs import examples_per_epoch, steps_in_epochs
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.image_sources import ImageFolder, TfdsImages
from remixer_tf.data.images import eval_images, image_dataset
from remixer_tf.data.lengths import LengthBuckets, LongExamples, count_over_length
from remixer_tf.data.pipeline import Batching, train_dataset
from remixer_tf.data.vocabularies import byte_vocabulary, vocabulary_size
from remixer_tf.data.vocabulary_training import read_texts
from remixer_tf.data.wordpiece import wordpiece_vocabulary
from remixer_tf.errors import UserError
from remixer_tf.tasks import classes, mini_cogs, rows, squad, text
from remixer_tf.tasks.table_files import read_table
from remixer_tf.tasks.tables import TableRows, table_task
from remixer_tf.tasks.text_files import read_files

LENGTHS = {"inputs": 8, "targets": 8}
TASK = classes.encoder_task()
TABLE = functools.partial(table_task, {"train": "a.tsv"}, "{x}", "{y}")
ROWS = functools.partial(rows.RowSource, lambda split: [], ["train"])
CROP = functools.partial(
    augmentation.resize_and_center_crop, np.zeros([4, 4, 3]), Seeds(0)
)


class SimpleImages:
    """What is asked of a source before anything is read."""

    draw = read = None


AREA = functools.partial(
    augmentation.random_resized_crop, np.zeros([4, 4, 3]), Seeds(0), 4
)
NORMAL = functools.partial(augmentation.normalize, np.zeros([4, 4, 3]), Seeds(0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: write_caches("mini_cogs", "a"), "task must be a seqio.Task or seqio"),
        (lambda: write_caches(TASK, "a", num_shards=0), "num_shards must be an intege"),
        (lambda: write_caches(TASK, "a", splits=5), "splits must be a list of str. Re"),
        (lambda: cached_task(TASK, None), "directory must be the path of a file or"),
        (lambda: read_texts(TASK, split=5), "split must be a str. Received: split=5"),
        (lambda: read_texts(TASK, features=None), "features must be a list of str."),
        (lambda: read_texts(TASK, num_examples="x"), "num_examples must be an integer"),
        (lambda: byte_vocabulary(-1), "extra_ids must be an integer of at least 0."),
        (lambda: vocabulary_size("mini_cogs"), "task must be a seqio.Task or seqio.Mi"),
        (lambda: wordpiece_vocabulary(5), "path must be the path of a file or folder"),
        (lambda: wordpiece_vocabulary("a", "no"), "lower_case must be True or False."),
        (lambda: Batching(4, shuffle="no"), "shuffle must be True or False. Received"),
        (lambda: Batching(4, feature_converter="LM"), "feature_converter must be a fu"),
        (lambda: LongExamples(count_limit=None), "count_limit must be an integer of a"),
        (lambda: count_over_length(TASK, "x", 8), "feature_lengths must be a Mapping."),
        (lambda: read_examples(TASK, 5, LENGTHS), "split must be a str. Received: spl"),
        (lambda: LengthBuckets([8], LENGTHS, None), "length_buckets must be None or a"),
        (lambda: examples_per_epoch(TASK, "dev"), "encoder has no split 'dev'. It has"),
        (lambda: steps_in_epochs(1, TASK, batch_size=0), "batch_size must be an integ"),
        (lambda: image_dataset("a", [], batch_size=1), "source must be an ImageFolder"),
        (lambda: eval_images(TASK.source, 5, batch_size=1), "source must be an ImageF"),
        (lambda: ImageFolder(5), "path must be the path of a file or folder, in UTF-8"),
        (lambda: TfdsImages(5), "name must be a str. Received: name=5"),
        (lambda: CROP(image_size="8"), "image_size must be an integer of at least 1."),
        (lambda: CROP(image_size=8, share=0), "share must be a number above 0. Recei"),
        (lambda: CROP(image_size=8, method="x"), "method must be one of bilinear, nea"),
        (lambda: NORMAL(mean="abc"), "mean must be a list of numbers. Received: mean="),
        (lambda: NORMAL(mean=(0, "1", 1)), "mean must be a list of numbers. Received:"),
        (lambda: NORMAL(mean=5), "mean must be a list of numbers. Received: mean=5"),
        (lambda: NORMAL(mean=(1, 2)), "mean must be 3 numbers, for red, green and blu"),
        (lambda: NORMAL(std=(1,) * 4), "std must be 3 numbers, for red, green and blu"),
        (lambda: NORMAL(std=(0, 1, 1)), "std must be numbers above 0. Received: std=0"),
        (lambda: Codec("mini_cogs", LENGTHS), "task must be a seqio.Task or seqio.Mix"),
        (lambda: TABLE(rows={"seed": 1}), "rows must be a TableRows. Received: rows={"),
        (lambda: TABLE(eos_after_trim=2), "eos_after_trim must be True or False. Rece"),
        (lambda: TableRows(seed="x"), "seed must be an integer. Received: seed='x'"),
        (lambda: ROWS(names=None), "names must be a list of str. Received: names=None"),
        (lambda: rows.RowSource([], ["a"]), "read_rows must be a function or class"),
        (lambda: classes.encoder_task(3), "classes must be a list of str. Received: c"),
        (lambda: classes.add_source(5, TASK.source, []), "name must be a str of lette"),
        (lambda: squad.add_task("a", None), "source must be a DataSource. Received: "),
        (lambda: mini_cogs.generate(sizes=5), "sizes must be the numbers of sentences"),
        (lambda: read_table("a.tsv", columns=5), "columns must be a list of str. Rece"),
        (lambda: read_files([5]), "Files of text are the name or pattern of a file"),
        (lambda: text.text_task("lm", {"a": 5}).get_dataset(None, "a"), "Files of tex"),
    ],
)
def test_what_was_expected_is_said(call, message):
    with pytest.raises(UserError) as caught:
        call()
    assert str(caught.value).startswith(message)


NAN = float("nan")


@pytest.mark.parametrize("area", [5, "ab", None, (True, True), (NAN, 1.0), ("a", 1.0)])
def test_an_area_is_numbers(area):
    with pytest.raises(UserError, match="^area must be a list of numbers. Received:"):
        AREA(area=area)


@pytest.mark.parametrize(
    "area", [(1.0, 0.08), (0.08,), (), (0.1, 0.2, 0.3), (0, 1), (-1, 1), (0.5, 1.5)]
)
def test_an_area_is_two_shares(area):
    """Of a least above the largest, TensorFlow would return the whole image."""
    with pytest.raises(UserError, match="^area must be the least and the largest sha"):
        AREA(area=area)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda image: image, r"mixing must be a list of keras\.layers\.MixUp and"),
        (keras.layers.MixUp, r"mixing must be a list of keras\.layers\.MixUp and"),
        (keras.layers.RandomFlip(), r"mixing must be a list of keras\.layers\.MixUp"),
        (keras.layers.MixUp(0), r"MixUp\.alpha must be a number above 0. Received"),
        (keras.layers.MixUp("x"), r"MixUp\.alpha must be a number above 0. Received"),
        (keras.layers.MixUp(NAN), r"MixUp\.alpha must be a number above 0. Received"),
        (keras.layers.CutMix((0, 9)), r"CutMix\.factor must be one or two numbers in"),
        (keras.layers.CutMix(NAN), r"CutMix\.factor must be one or two numbers in"),
    ],
)
def test_layers_that_mix_images(layer, message):
    with pytest.raises(UserError, match="^" + message) as caught:
        image_dataset(SimpleImages(), [], batch_size=1, mixing=[layer])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("several", [tuple, list, np.array])
def test_colours_may_be_integers_and_arrays(several):
    image = np.full([1, 1, 3], 5, np.float32)
    mean, std = several([1, 3, 5]), several([2, 2, 2])
    normal = augmentation.normalize(image, Seeds(0), mean, std)
    np.testing.assert_array_equal(normal[0, 0], [2, 1, 0])
    assert AREA(area=several([0.5, 1])).shape == (4, 4, 3)


def test_a_task_that_cannot_be_shuffled():
    task = seqio.Task(
        "fixed_order",
        rows.RowSource(lambda split: [("a", "b")], ["train"], ["inputs", "targets"]),
        output_features=rows.byte_features(),
        preprocessors=rows.TOKENIZE,
        shuffle_buffer_size=None,
    )
    with pytest.raises(UserError, match="^fixed_order has no shuffle_buffer_size"):
        train_dataset(task, LENGTHS, Batching(1))
    train_dataset(task, LENGTHS, Batching(1, shuffle=False))
