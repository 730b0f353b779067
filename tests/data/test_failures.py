"""One line says which task cannot read which files, and why."""

import pytest
import seqio
import tensorflow as tf

from remixer_tf.data.caching import write_caches
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.failures import data_errors
from remixer_tf.data.pipeline import Batching, train_dataset
from remixer_tf.data.vocabulary_training import read_texts
from remixer_tf.errors import MissingFileError, UserError

LENGTHS = {"inputs": 8, "targets": 8}
TEXT = tf.io.FixedLenFeature([], tf.string)


def make(source, first):
    return seqio.Task(
        "mine",
        source=source,
        preprocessors=[
            first,
            seqio.preprocessors.tokenize,
            seqio.CacheDatasetPlaceholder(),
        ],
        output_features=dict.fromkeys(
            LENGTHS, seqio.Feature(seqio.ByteVocabulary(), add_eos=False)
        ),
    )


def lines(*files):
    """A task of lines of text."""
    files = files[0] if len(files) == 1 else [*files]
    source = seqio.TextLineDataSource({"train": files})
    return make(source, lambda x: x.map(lambda text: dict.fromkeys(LENGTHS, text)))


def examples(file, *names):
    """A task of `tf.train.Example`s."""
    source = seqio.TFExampleDataSource({"train": file}, dict.fromkeys(names, TEXT))
    return make(source, lambda x: x.map(lambda row: dict.fromkeys(LENGTHS, row["a"])))


def calls(function):
    """A task that a function of the user's reads."""
    return make(seqio.FunctionDataSource(function, ["train"]), lambda x: x)


def raises(error):
    def read(split, shuffle_files):
        raise error

    return read


def inputs_alone(split, shuffle_files):
    return tf.data.Dataset.from_tensor_slices({"inputs": ["a"]})


CASES = {
    "reads '.*/b[*]', and no such file .* In its folder: .*a.txt": lambda x: lines(
        f"{x}/b*"
    ),
    r"cannot be read \(.*/a.txt, .*/b.txt\): .*/b.txt; No such file or directory": (
        lambda x: lines(f"{x}/a.txt", f"{x}/b.txt")
    ),
    r"cannot be read \(.*\): .*; Is a directory": lambda x: lines(str(x)),
    "reads files by a pattern.*Received: 5": lambda x: lines(5),
    r"cannot be read \(.*/b\): .*/b; No such file": lambda x: examples(f"{x}/b", "a"),
    r"cannot be read \(.*/a.txt\): .* at 0 \(Is this even a TFRecord file.\)": (
        lambda x: examples(f"{x}/a.txt", "a")
    ),
    r"cannot be read \(.*/rows\): Feature: b .* is required": lambda x: examples(
        f"{x}/rows", "a", "b"
    ),
    "cannot be read: .*No such file.*/x/y.csv": lambda x: calls(
        raises(FileNotFoundError(2, "No such file", "/x/y.csv"))
    ),
    "cannot be read: no network": lambda x: calls(
        raises(ConnectionError("no network"))
    ),
    "Task dataset is missing .*: targets": lambda x: calls(inputs_alone),
}
READ = {
    "train": lambda task, folder: train_dataset(task, LENGTHS, Batching(1)),
    "evaluate": lambda task, folder: read_examples(task, "train", LENGTHS),
    "vocabulary": lambda task, folder: read_texts(task),
    "cache": lambda task, folder: [*write_caches(task, f"{folder}/cache")],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sources")
    (folder / "a.txt").write_text("a line\n" * 9)
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"x"]))
    row = tf.train.Example(features=tf.train.Features(feature={"a": feature}))
    with tf.io.TFRecordWriter(f"{folder}/rows") as writer:
        writer.write(row.SerializeToString())
    return folder


@pytest.mark.parametrize("message", CASES)
def test_what_cannot_be_read(folder, message):
    ways = READ if message.startswith("reads '.*/b[*]'") else ["evaluate"]
    for way in ways:
        with pytest.raises(UserError, match=f"mine train:? {message}") as caught:
            READ[way](CASES[message](folder), folder)
        assert "\n" not in str(caught.value) and "name: " not in str(caught.value)


@pytest.mark.parametrize("several", [tuple, set, dict.fromkeys])
def test_a_collection_of_patterns(folder, several):
    """As seqio, whose argument is an iterable of str."""
    task = lines(several([f"{folder}/a.*"]))
    assert len(read_examples(task, "train", LENGTHS)) == 9


def test_a_set_that_tensorflow_datasets_lacks():
    task = make(seqio.TfdsDataSource("no_such_set:1.0.0"), lambda x: x)
    with pytest.raises(UserError, match="mine reads .*no_such_set not found"):
        read_examples(task, "train", LENGTHS)


def broken_row():
    yield {"inputs": "a", "targets": "b"}
    raise KeyError("row 2")


def rows_of_python(split, shuffle_files):
    signature = dict.fromkeys(LENGTHS, tf.TensorSpec([], tf.string))
    return tf.data.Dataset.from_generator(broken_row, output_signature=signature)


@pytest.mark.parametrize("function", [tf.py_function, tf.numpy_function])
def test_a_users_error_in_a_graph_is_one_line(function):
    def check(line):
        raise MissingFileError(f"There is no {line!r:.9}")

    def read(split, shuffle_files):
        data = tf.data.Dataset.from_tensors("a")
        data = data.map(lambda line: function(check, [line], tf.string))
        return data.map(lambda line: dict.fromkeys(LENGTHS, tf.reshape(line, [])))

    with pytest.raises(MissingFileError, match="^There is no "):
        read_examples(calls(read), "train", LENGTHS)
    with pytest.raises(MissingFileError, match="^There is no "), data_errors():
        next(iter(read("train", False)))


@pytest.mark.parametrize("read", [raises(KeyError("row 2")), rows_of_python])
def test_an_error_of_a_users_code_keeps_its_traceback(read):
    with pytest.raises(Exception, match="row 2") as caught:
        read_examples(calls(read), "train", LENGTHS)
    assert not isinstance(caught.value, UserError)
    assert caught.value.__notes__ == ["This was raised while mine train was read."]
