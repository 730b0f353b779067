"""Files are read again once they have changed."""

import json
import os

import pytest

from remixer_tf.data.file_states import file_digest, kept_while_unchanged
from remixer_tf.data.pipeline import get_task
from remixer_tf.data.vocabularies import (
    describe_vocabularies,
    sentencepiece_vocabulary,
)
from remixer_tf.data.vocabulary_training import train_vocabulary
from remixer_tf.tasks import text_files
from remixer_tf.tasks.benchmark_files import super_glue_folder
from remixer_tf.tasks.tables import table_task


def rewrite(path, text):
    """Another text of the same size under the same name and times, as `cp -p` may."""
    before = os.stat(path)
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def of_table(path):
    task = table_task({"dev": str(path)}, "{t}", "{t}", name="t")
    return task.source.read_rows("dev")[0][0]


def of_folder(path):
    return text_files.read_split("train")[0]


def of_pattern(path):
    return text_files.read_files(f"{path.parent}/*.txt")[0]


def of_benchmark(path):
    (path.parent / "COPA").mkdir(exist_ok=True)
    row = {"premise": path.read_text().strip(), "question": "cause", "label": 0}
    row |= {"choice1": "b", "choice2": "c", "idx": 0}
    (path.parent / "COPA" / "val.jsonl").write_text(json.dumps(row) + "\n")
    source = get_task("super_glue_copa_v102").source
    (example,) = source.get_dataset("validation").as_numpy_iterator()
    return example["premise"].decode()


@pytest.mark.parametrize("reader", [of_table, of_folder, of_pattern, of_benchmark])
def test_a_corrected_file_is_read_again(tmp_path, monkeypatch, reader):
    monkeypatch.setenv("REMIXER_TF_TEXT_DIR", str(tmp_path))
    monkeypatch.setenv("REMIXER_TF_SUPER_GLUE_DIR", str(tmp_path))
    super_glue_folder.set(None)
    path = tmp_path / "a.txt"
    path.write_text("t\nold\n" if reader is of_table else "old\n")
    first = reader(path)
    rewrite(path, path.read_text().replace("old", "new"))
    assert (first, reader(path)) == ("old", "new")


def test_files_are_read_once_until_they_change(tmp_path):
    """A file that is made, replaced, or removed is a change; reading is none."""
    reads, path = [], tmp_path / "a"

    @kept_while_unchanged(lambda *names: names, maxsize=2)
    def read(name):
        reads.append(name)
        return os.path.exists(name) and open(name).read()

    assert read(path) is False and read(path) is False and len(reads) == 1
    path.write_text("1")
    assert read(path) == "1" and read(path) == "1" and len(reads) == 2
    (tmp_path / "b").write_text("2")
    os.replace(tmp_path / "b", path)
    assert read(path) == "2" and len(reads) == 3
    read("c"), read("d"), read(path)
    assert len(reads) == 6  # Two are kept.


def test_a_vocabulary_trained_again_is_the_new_one(tmp_path):
    path = str(tmp_path / "a.model")
    old = train_vocabulary(["a b c d"] * 9, path, model_type="word")
    digests = [file_digest(path)]
    new = train_vocabulary(["e f g h i"] * 9, path, model_type="word")
    digests.append(file_digest(path))
    assert digests[0] != digests[1] and old != new
    assert (old.vocab_size, new.vocab_size) == (7, 8)
    assert 2 not in sentencepiece_vocabulary(path).encode("e f")
    for vocabulary, digest in zip((old, new), digests, strict=True):
        task = get_task(table_task({"dev": "a.tsv"}, "{0}", "{1}"), vocabulary)
        (described, _) = describe_vocabularies(task).values()
        assert described["sha256"] == digest
