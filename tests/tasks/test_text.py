"""Text files: which are found, how they are cut, which split they fall in."""

import gzip
import json

import pytest
import seqio

from remixer_tf.data.pipeline import check_split, get_task
from remixer_tf.data.vocabulary_training import read_texts
from remixer_tf.tasks import text_files
from remixer_tf.tasks.text import text_task


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "below").mkdir()
    paragraphs = [f"{i} {'word ' * 200}\nwrapped" for i in range(300)]
    book = "\n\n".join(paragraphs)
    with gzip.open(tmp_path / "below" / "book.txt.gz", "wt", encoding="utf-8") as file:
        file.write("﻿licence\n*** START OF THE PROJECT ***\n")
        file.write(f"{book}\n*** END OF THE PROJECT ***\nmore licence\n")
    lines = [json.dumps({"text": f"document {i}", "url": ""}) for i in range(100)]
    (tmp_path / "web.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "README.md").write_text("no text")
    text_files.data_folder.set(str(tmp_path))
    yield tmp_path
    text_files.data_folder.set(None)


def test_documents(folder):
    train, validation = map(text_files.read_split, text_files.SPLITS)
    web = [text for text in train + validation if text.startswith("document ")]
    assert sorted(web) == sorted(f"document {i}" for i in range(100))
    assert {f"document {98}", f"document {99}"} < set(validation)
    book = [text for text in train + validation if text not in web]
    assert 25 < len(book) < 35 and sum(text in book for text in validation) == 1
    assert all(10_000 <= len(text) < 12_000 for text in book[:5])
    paragraphs = [line for text in book for line in text.split("\n")]
    assert sorted(int(line.split()[0]) for line in paragraphs) == list(range(300))
    assert all(line.endswith("word wrapped") for line in paragraphs)
    assert train == text_files.read_split("train") and train != sorted(train)


def test_a_vocabulary_can_be_trained_from_the_documents(folder):
    texts = read_texts("text_documents", features=["targets"])
    assert texts == text_files.read_split("train")


def test_pieces_after_what_comes_before_them(folder):
    """Of `text_lm_stride`: each token is a target once, in the order of `text_lm`."""

    def read(name, **lengths):
        task = seqio.get_mixture_or_task(name)
        dataset = task.get_dataset(lengths, split="validation", shuffle=False)
        return [
            {k: x.tolist() for k, x in e.items()} for e in dataset.as_numpy_iterator()
        ]

    text = sum((e["targets"] for e in read("text_lm", targets=512)), [])
    pieces = read("text_lm_stride", inputs=20, targets=8)
    assert sum((e["targets"] for e in pieces), []) == text
    assert [len(e["targets"]) for e in pieces[:-1]] == [8] * (len(pieces) - 1)
    for i, piece in enumerate(pieces):
        assert piece["inputs"] == text[max(8 * i - 20, 0) : 8 * i]


EXAMPLES = {
    "span_corruption": (
        {"inputs": 16, "targets": 6},
        {"inputs": [*range(100, 114), 358, 1], "targets": [358, 114, 115, 116, 1]},
        {"inputs": [117, 118, 358, 1], "targets": [358, 119, 1]},
    ),
    "prefix_lm": (
        {"inputs": 8, "targets": 8},
        {"inputs": [100, 101, 1], "targets": [102, 103, 104, 105, 106, 1]},
        {"inputs": [107, 108, 109, 110, 1], "targets": [111, 112, 113, 1]},
        {"inputs": [114, 115, 116, 117, 118, 1], "targets": [119, 1]},
    ),
    "mlm": (
        {"inputs": 12, "targets": 12},
        {"inputs": [260, 261, *range(101, 111)], "targets": [-1, 100] + 10 * [-1]},
        {
            "inputs": [260, 111, 1, 112, 113, 114, 115, 116, 117, 261, 119, 1],
            "targets": 9 * [-1] + [118, -1, -1],
        },
    ),
    "lm": (
        {"targets": 14},
        {"targets": [*range(100, 112), 1, 112]},
        {"targets": [*range(113, 120), 1]},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("objective", EXAMPLES)
def test_examples(objective, tmp_path):
    lengths, *expected = EXAMPLES[objective]
    path = tmp_path / "two.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write('{"text": "abcdefghijkl"}\n{"text": "mnopqrst", "url": ""}\n')
    task = text_task(objective, {"train": str(path)})
    dataset = task.get_dataset(lengths, split="train", shuffle=False, seed=0)
    examples = [
        {k: x.tolist() for k, x in e.items()} for e in dataset.as_numpy_iterator()
    ]
    assert examples == expected


def test_span_corruption_has_t5s_lengths(tmp_path):
    """568 tokens of text become 512 and 114, 15% of them hidden in 28 spans."""
    (tmp_path / "a.txt").write_text("x" * 3000)
    task = text_task("span_corruption", {"train": str(tmp_path / "*.txt")})
    lengths = {"inputs": 512, "targets": 114}
    dataset = task.get_dataset(lengths, split="train", shuffle=False, seed=0)
    examples = list(dataset.as_numpy_iterator())
    assert len(examples) == 6  # 5 of 568, and 160 tokens
    for example in examples[:-1]:
        inputs, targets = example["inputs"], example["targets"]
        assert (len(inputs), len(targets)) == (512, 114)
        sentinels = list(range(358, 330, -1))
        assert [x for x in inputs if x > 258] == sentinels
        assert [x for x in targets if x > 258] == sentinels
        assert inputs[-1] == targets[-1] == 1


def test_bad_rows_are_told_or_left_out(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(
        b'{"text": "good"}\n{"text": "caf\xe9"}\nno JSON\n{"text": " "}\n{"url": 1}\n'
    )
    (tmp_path / "b.txt").write_bytes(b"one\n\ntw\xff\nthree\n")
    corpus = {"train": [str(tmp_path / "a.jsonl"), str(tmp_path / "b.txt")]}
    with pytest.raises(ValueError) as error:
        next(iter(text_task("lm", corpus).source.get_dataset("train")))
    for words in (
        "5 of 7 rows are bad",
        f"invalid UTF-8: 1 (line 2 of {tmp_path}/a.jsonl)",
        f"malformed JSON (Expecting value): 1 (line 3 of {tmp_path}/a.jsonl)",
        f"no text: 2 (line 4, 5 of {tmp_path}/a.jsonl)",
        f"invalid UTF-8: 1 (line 3 of {tmp_path}/b.txt)",
        "text_task.on_bad_rows = 'skip'",
    ):
        assert words in str(error.value)
    task = text_task("lm", corpus, on_bad_rows="skip")
    texts = [x["text"] for x in task.source.get_dataset("train").as_numpy_iterator()]
    assert sorted(texts) == [b"good", b"one\nthree"]


@pytest.mark.parametrize(
    "name, content, error, words",
    [
        ("a.txt", None, FileNotFoundError, "There is no file '.*a.txt'.*also.txt"),
        ("a.txt", b" \n", ValueError, "There is no text in .*a.txt: the file is empty"),
        ("a.jsonl", b"", ValueError, "the file is empty"),
        ("a.jsonl", b'{"body": "x"}\n', ValueError, "no column 'text'. It has: body"),
        ("a.txt.gz", b"plain", ValueError, "cannot be decompressed"),
        ("a.doc", b"x", ValueError, "does not tell its format"),
    ],
)
def test_files_that_cannot_be_read(name, content, error, words, tmp_path):
    (tmp_path / "also.txt").write_text("x")
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(error, match=words):
        text_files.read_files(str(path))


def test_arguments(tmp_path):
    for arguments, words in (
        ({"objective": "spans"}, "objective must be one of span_corruption"),
        ({"corpus": "/books"}, "such as 'c4/en:2.2.0'. Received: '/books'"),
        ({"on_bad_rows": True}, "on_bad_rows must be one of raise, skip"),
    ):
        with pytest.raises(ValueError, match=words):
            text_task(**arguments)
    (tmp_path / "a.txt").write_text("x" * 3000)
    for objective, vocabulary, lengths, words in (
        ("span_corruption", 100, (512, 113), "'targets': 114"),
        ("span_corruption", 27, (512, 114), "28 spans.*extra_ids=27"),
        ("prefix_lm", 0, (9, 8), "equal lengths"),
    ):
        task = text_task(objective, {"train": str(tmp_path / "a.txt")})
        feature = seqio.Feature(seqio.ByteVocabulary(vocabulary))
        task = task.replace(output_features={"inputs": feature, "targets": feature})
        with pytest.raises(ValueError, match=words):
            task.get_dataset(dict(zip(("inputs", "targets"), lengths, strict=True)))


@pytest.mark.parametrize("name", ["c4_v220_span_corruption", "c4_v220_lm"])
def test_a_missing_dataset_names_the_command_that_fetches_it(
    name, tmp_path, monkeypatch
):
    loader = type(get_task(name).source.tfds_dataset)
    monkeypatch.setattr(loader, "data_dir", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"Fetch it: run .*'c4/en:2.2.0'"):
        check_split(get_task(name), "train")


def test_errors(tmp_path, monkeypatch):
    monkeypatch.delenv("REMIXER_TF_TEXT_DIR", raising=False)
    with pytest.raises(FileNotFoundError, match="text_files.directory"):
        text_files.read_split("train")
    monkeypatch.setenv("REMIXER_TF_TEXT_DIR", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="There is no"):
        text_files.read_split("train")
