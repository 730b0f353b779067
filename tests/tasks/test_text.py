"""Text files: which are found, how they are cut, which split they fall in."""

import gzip
import json

import pytest
import seqio

from remixer_tf.data.vocabulary_training import read_texts
from remixer_tf.tasks import text_files


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
    text_files.set_directory(str(tmp_path))
    yield tmp_path
    text_files.set_directory(None)


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


def test_errors(tmp_path, monkeypatch):
    monkeypatch.delenv("REMIXER_TF_TEXT_DIR", raising=False)
    with pytest.raises(FileNotFoundError, match="text_files.directory"):
        text_files.read_split("train")
    monkeypatch.setenv("REMIXER_TF_TEXT_DIR", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="There is no"):
        text_files.read_split("train")
