"""`python -m remixer_tf data_report`: its numbers against NumPy, and what it prints."""

import io
import subprocess
import sys

import numpy as np
import pytest
import seqio

from remixer_tf.analysis import data_statistics as statistics
from remixer_tf.analysis.data_report import write_task
from remixer_tf.commands import run_command
from remixer_tf.configuration import UserError
from remixer_tf.data.classification import ClassifierFeatureConverter
from remixer_tf.data.codec import Codec
from remixer_tf.data.eval_batches import read_examples
from remixer_tf.data.masked_lm import concat_and_split
from remixer_tf.data.pipeline import get_task
from remixer_tf.data.vocabularies import sentencepiece_vocabulary
from remixer_tf.data.vocabulary_training import train_vocabulary
from tests.data.toy_images import make_folder
from tests.data.toy_tasks import rows, toy_task
from tests.tiny_run import TEXTS

pytestmark = pytest.mark.usefixtures("clear_gin")

LENGTHS = [(1 + i * 7 % 11, 1 + i * i % 6) for i in range(40)]
FEATURE_LENGTHS = {"inputs": 8, "targets": 5}
BUCKETS = [{"inputs": 4, "targets": 3}, {"inputs": 8, "targets": 3}]


@pytest.fixture(scope="module")
def task():
    return toy_task({"train": rows(LENGTHS), "test": rows(LENGTHS[:3])})


@pytest.fixture(scope="module")
def examples(task):
    return read_examples(task, "train", FEATURE_LENGTHS, trim=False)


def test_percentiles_and_histogram():
    values = [3] * 50 + [9] * 49 + [40]
    assert [statistics.percentile(values, p) for p in (50, 51, 99, 100)] == [
        3,
        9,
        9,
        40,
    ]
    assert statistics.suggest_length(values) == 16
    assert statistics.suggest_length([8]) == 8
    rng = np.random.default_rng(0)
    for least, greatest in ((0, 15), (0, 16), (3, 18), (100, 1131)):
        values = np.r_[least, greatest, rng.integers(least, greatest + 1, 500)]
        bins = statistics.histogram(values)
        assert len(bins) <= 16
        assert bins[0][0] <= least <= bins[0][1]
        assert bins[-1][0] <= greatest <= bins[-1][1]
        for (_, last, _), (first, _, _) in zip(bins, bins[1:], strict=False):
            assert first == last + 1
        for first, last, count in bins:
            assert count == ((values >= first) & (values <= last)).sum()


@pytest.mark.slower
def test_what_is_trimmed_and_padding(examples):
    whole = np.array(LENGTHS) + 1  # EOS
    for name, column in (("inputs", 0), ("targets", 1)):
        lengths = [len(example[name]) for example in examples]
        assert lengths == whole[:, column].tolist()
    limits = np.array(list(FEATURE_LENGTHS.values()))
    lengths = {"inputs": whole[:, 0], "targets": whole[:, 1]}
    over = (whole > limits).any(axis=1).mean()
    assert 0 < over < 1 and statistics.share_over(lengths, FEATURE_LENGTHS) == over

    def share(feature_lengths=FEATURE_LENGTHS, **arguments):
        codec = Codec(toy_task({}), feature_lengths)
        return statistics.share_of_padding(examples, codec, **arguments)

    cut = np.minimum(whole, limits)
    padding, number = share()
    assert number == len(LENGTHS)
    assert padding == pytest.approx(1 - cut.sum() / (number * limits.sum()))

    # seqio packs in order, so many examples at a time as the longest feature has
    # tokens: a row is closed when the next example does not fit.
    room, used, packed = np.array([24, 12]), 0, 0
    for i, example in enumerate(whole):
        if i % 24 == 0 or (used + example > room).any():
            used, packed = 0, packed + 1
        used = used + example
    padding, number = share({"inputs": 24, "targets": 12}, pack=True)
    assert number == packed < len(LENGTHS)
    assert padding == pytest.approx(1 - whole.sum() / (number * room.sum()))

    padding, number = share(length_buckets=BUCKETS)
    sizes = np.array([list(b.values()) for b in [*BUCKETS, FEATURE_LENGTHS]])
    held = (cut[:, None] <= sizes).all(axis=2).argmax(axis=1)
    assert number == len(LENGTHS) and set(held) == {0, 1, 2}
    assert padding == pytest.approx(1 - cut.sum() / sizes[held].sum())


def test_suggested_buckets_grow_and_stay_within():
    lengths = {"inputs": np.arange(1, 101), "targets": np.full(100, 3)}
    assert statistics.suggest_buckets(lengths, {"inputs": 80, "targets": 8}) == [
        {"inputs": 56, "targets": 8}
    ]
    assert statistics.suggest_buckets(lengths, {"inputs": 96, "targets": 8}) == [
        {"inputs": 56, "targets": 8},
        {"inputs": 80, "targets": 8},
    ]


def test_pieces_and_unknown():
    vocabulary = seqio.ByteVocabulary(extra_ids=2)
    ids = np.array([100, 35, 0xE2 + 3, 2, 1, 0, 259, 260, -1])
    shown = ["a", " ", "<0xE2>", "<unk>", "</s>", "<pad>"]
    shown += ["<extra_id_1>", "<extra_id_0>", "-"]
    assert statistics.pieces(ids, vocabulary) == shown
    sequences = [np.array([5, 2, 2, 1]), np.array([5, 1])]
    assert statistics.unknown(sequences, vocabulary) == (2 / 6, 1 / 2)


def test_sizes_of_splits(task):
    def read(split, shuffle_files):
        if split == "test":
            raise FileNotFoundError("there is no test.tsv")
        return task.source.get_dataset(split=split, shuffle=False)

    told = "cannot be read: there is no test.tsv"
    known = seqio.FunctionDataSource(
        read, splits=["dev"], num_input_examples={"dev": 1234}
    )
    assert statistics.split_size(task.replace(source=known), "dev", 10) == "1,234"
    source = seqio.FunctionDataSource(read, splits=["train", "test"])
    for limit, size in ((39, "39 or more"), (40, "40")):
        unknown = task.replace(source=source)
        assert statistics.split_size(unknown, "train", limit) == size
        assert statistics.split_size(unknown, "test", limit) == told


TEXT = """\
toy train: a sample, the first 30, examples were read.

example 1
  inputs: a
  inputs, piece:id: a:100 </s>:1
  targets: a
  targets, piece:id: a:100 </s>:1

"""
HISTOGRAM = """
targets: tokens, examples
  2-2 |####################                    | 5
  3-3 |########################################| 10
  4-4 |                                        | 0
  5-5 |####################                    | 5
  6-6 |########################################| 10
"""


@pytest.mark.slow
def test_the_printed_text(task):
    class Unpacked(seqio.EncDecFeatureConverter):
        PACKING_FEATURE_DTYPES = None  # packing takes seconds to trace

    file = io.StringIO()
    write_task(
        task,
        file,
        feature_lengths=FEATURE_LENGTHS,
        feature_converter=Unpacked,
        max_examples=30,
        shown_examples=1,
    )
    text = file.getvalue()
    assert TEXT in text and HISTOGRAM in text
    cells = [line.strip("│ ").split("│") for line in text.splitlines() if "│" in line]
    cells = [[cell.strip() for cell in line] for line in cells]
    assert ["train", "30 or more"] in cells and ["test", "3"] in cells
    whole = np.array(LENGTHS[:30]) + 1
    ranks = [
        sorted(whole[:, 0])[int(np.ceil(p * 0.3)) - 1] for p in (50, 90, 95, 99, 100)
    ]
    mean, over = whole[:, 0].mean(), (whole[:, 0] > 8).mean()
    row = ["inputs", f"{mean:.1f}", *map(str, ranks), "0.00%", "0.00%", "8"]
    assert [*row, f"{100 * over:.2f}%"] in cells
    over = (whole > [8, 5]).any(axis=1).mean()
    assert f"{100 * over:.2f}% of the examples are longer than inputs 8 / t" in text
    assert "FEATURE_LENGTHS = {'inputs': 16, 'targets': 8}\n" in text


@pytest.mark.slow
def test_a_mixture_is_shown_task_by_task(task):
    other = toy_task({"test": rows([(2, 2)])}, name="other")
    mixture = seqio.Mixture("both", [(task, 3), (other, 1)])
    file = io.StringIO()
    write_task(mixture, file, shown_examples=0, max_examples=4)
    text = " ".join(file.getvalue().replace("│", " ").split())
    assert "other 1 25.00% toy 3 75.00%" in text
    assert "toy train: a sample, the first 4, examples" in text
    assert "other has no split 'train'." in text


def test_what_cannot_be_shown_is_told(task):
    pieces = toy_task({"train": rows([(2, 2)])}, last=concat_and_split)
    with pytest.raises(ValueError, match="toy has no split 'dev'"):
        write_task(task, io.StringIO(), split="dev")
    with pytest.raises(ValueError, match="toy has no feature token_types, which"):
        converter = ClassifierFeatureConverter
        write_task(task, io.StringIO(), feature_converter=converter)
    with pytest.raises(ValueError, match="makes its examples for the lengths of a run"):
        write_task(pieces, io.StringIO())
    with pytest.raises(ValueError, match="TASK in gin"):
        run_command("data_report", [])
    with pytest.raises(UserError, match="--gin_file or --model_dir, not both"):
        run_command("data_report", ["--model_dir=a", "--gin_file=b"])
    with pytest.raises(UserError, match="--max_examples: must be at least 1"):
        run_command("data_report", ["--max_examples=0"])


def test_images(tmp_path, capsys):
    folder = make_folder(tmp_path / "colors", {"train": 3, "test": 1})
    source = ["--gin.SOURCE=@ImageFolder()", f"--gin.ImageFolder.directory='{folder}'"]
    files = "--gin_file=models/gmlp_vision_tiny.gin,runs/imagenet.gin"
    run_command("data_report", [files, *source])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "train 9" in text and "test 3" in text
    assert "colors train: all 9 images were read." in text
    assert "blue 3 33.33% green 3 33.33% red 3 33.33%" in text
    assert f"height: pixels, images 20-20 |{'#' * 40}| 9" in text
    assert f"width: pixels, images 16-16 |{'#' * 40}| 9" in text


def test_it_is_a_program():
    """Its name is also that of a module of the standard library."""
    program = [sys.executable, "-m", "remixer_tf", "data_report", "--help"]
    text = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    assert "--max_examples N" in text


@pytest.mark.slower
def test_the_data_of_a_run_on_words(tmp_path, capsys):
    vocabulary = f"{tmp_path}/words.model"
    train_vocabulary(TEXTS, vocabulary, model_type="word")
    (tmp_path / "operative_config.gin").write_text(
        f"include 'runs/mini_cogs.gin'\nVOCABULARY_FILE = '{vocabulary}'\n"
    )
    options = ["--split=test", "--max_examples=20", "--examples=1"]
    run_command("data_report", [f"--model_dir={tmp_path}", "--trust", *options])
    text = capsys.readouterr().out
    assert "mini_cogs test: a sample, the first 20, examples were read." in text
    task = get_task("mini_cogs", sentencepiece_vocabulary(vocabulary))
    ids = [e["inputs"] for e in read_examples(task, "test", {}, 20)]
    share = np.mean(np.concatenate(ids) == 2)
    assert 0 < share < 1
    row = next(line for line in text.splitlines() if line.startswith("│ inputs "))
    assert f" {100 * share:.2f}% " in row
    processor = task.output_features["inputs"].vocabulary.tokenizer
    pairs = [f"{processor.IdToPiece(int(i))}:{i}" for i in ids[0]]
    assert f"  inputs, piece:id: {' '.join(pairs)}\n" in text
    assert "in 3 length buckets, of the run, and the longest" in text
