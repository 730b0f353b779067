"""A run remembers its vocabulary, and everything that reads it refuses another."""

import hashlib
import json
import shutil
import types

import gin
import pytest

from remixer_tf.checkpoints import paths
from remixer_tf.checkpoints.vocabularies import (
    check_vocabularies,
    name_copies,
    remember_vocabularies,
)
from remixer_tf.commands import run_command
from remixer_tf.data.vocabularies import (
    byte_vocabulary,
    describe_vocabularies,
    sentencepiece_vocabulary,
)
from remixer_tf.data.vocabulary_training import train_vocabulary, trained_vocabulary
from tests.data.toy_tasks import toy_task
from tests.tiny_run import TEXTS, TINY, WORDS, train_run

OTHER = {"kind": "ByteVocabulary", "size": 262, "extra_ids": 3}


@pytest.fixture(scope="module")
def words_run(tmp_path_factory):
    """The folder of a run, and the file of another vocabulary of the same size."""
    model_dir = tmp_path_factory.mktemp("words")
    train_run(model_dir, "words")
    gin.clear_config()
    other = str(model_dir / "other.model")
    train_vocabulary([text[::-1] for text in TEXTS], other, model_type="word")
    return model_dir, other


def test_what_is_remembered(tmp_path, caplog):
    vocabularies = describe_vocabularies(toy_task({"dev": []}))
    check_vocabularies(str(tmp_path), vocabularies)
    assert not caplog.records  # no run yet
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)
    check_vocabularies(str(tmp_path), vocabularies)
    assert "does not name the vocabulary" in caplog.text  # a run made before

    remember_vocabularies(str(tmp_path), vocabularies)
    check_vocabularies(str(tmp_path), vocabularies)
    for text in ("{", "[]", '{"inputs": 1}', "[" * 100_000):
        (tmp_path / "damaged").mkdir(exist_ok=True)
        (tmp_path / "damaged" / "vocabularies.json").write_text(text)
        with pytest.raises(ValueError, match="vocabularies.json is damaged"):
            check_vocabularies(str(tmp_path / "damaged"), vocabularies)
    check_vocabularies(str(tmp_path), {"labels": OTHER})  # nothing to compare
    with pytest.raises(
        ValueError, match=r"of targets: .* size 259, .*Received: .* size 262"
    ):
        check_vocabularies(str(tmp_path), {"targets": OTHER})
    remember_vocabularies(str(tmp_path), {"targets": OTHER})
    check_vocabularies(str(tmp_path), {"targets": OTHER})


def test_extra_ids_make_another_vocabulary():
    task = toy_task({"dev": []})
    features = {
        name: feature.__class__(byte_vocabulary(extra_ids=3))
        for name, feature in task.output_features.items()
    }
    other = task.replace(output_features=features)
    assert describe_vocabularies(other) == {"inputs": OTHER, "targets": OTHER}
    assert describe_vocabularies(task) != describe_vocabularies(other)


def test_a_run_keeps_its_vocabularies(tmp_path):
    folder, run = tmp_path / "elsewhere", tmp_path / "run"
    files = [str(folder / name / "words.model") for name in ("inputs", "targets")]
    for i, file in enumerate(files):
        train_vocabulary([text[i:] for text in TEXTS], file, model_type="word")
    digests = [hashlib.sha256(open(f, "rb").read()).hexdigest() for f in files]
    vocabularies = {
        feature: {"size": 20, "sha256": digest, "file": file}
        for feature, digest, file in zip(
            ["inputs", "targets"], digests, files, strict=True
        )
    }
    text = f"a.path = {files[0]!r}\nM = \\\n    {files[1]!r}\nc = 'words.model'\n"
    for _ in range(2):  # the second time its own copies are what it is given
        remember_vocabularies(str(run), vocabularies)
        named = [v["file"] for v in json.loads(
            (run / "vocabularies.json").read_text()).values()]  # fmt: skip
        assert named == [f"vocabularies/{d[:8]}-words.model" for d in digests]
        for vocabulary, place in zip(vocabularies.values(), named, strict=True):
            vocabulary["file"] = str(run / place)
    assert len(list((run / "vocabularies").iterdir())) == 2
    settings = types.SimpleNamespace(text=lambda: text, starts=[])
    assert name_copies(settings, str(run)) == (
        f"a.path = {named[0]!r}\nM = \\\n    {named[1]!r}\nc = 'words.model'\n"
    )
    shutil.rmtree(folder)
    assert sentencepiece_vocabulary(paths.locate(named[1], [run])).vocab_size


def test_a_missing_vocabulary_is_asked_for_and_not_made(tmp_path, monkeypatch):
    gone, missing = (
        paths.located(path, [], run="moved")
        for path in ("/gone/words.model", str(tmp_path / "words.model"))
    )
    for make in (
        lambda: sentencepiece_vocabulary(gone),
        lambda: trained_vocabulary("mini_cogs", missing, 99),
    ):
        with pytest.raises(
            FileNotFoundError, match="words.model.*run moved.*copy.*gin"
        ) as error:
            make()
        assert "train_vocabulary" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("command", ["eval", "infer", "export"])
def test_another_vocabulary_is_refused(words_run, command):
    model_dir, other = words_run
    with pytest.raises(ValueError, match="another vocabulary") as error:
        run_command(
            command, [f"--model_dir={model_dir}", f"--gin.VOCABULARY_FILE={other}"]
        )
    assert "words.model" in str(error.value) and "other.model" in str(error.value)


@pytest.mark.slow
def test_going_on_with_another_vocabulary_is_refused(words_run):
    model_dir, other = words_run
    arguments = [f"--model_dir={model_dir}", *WORDS, *TINY, "--gin.TRAIN_STEPS=2"]
    with pytest.raises(ValueError, match="another vocabulary"):
        run_command("train", [*arguments, f"--gin.VOCABULARY_FILE='{other}'"])


@pytest.mark.slow
def test_a_copy_of_the_vocabulary_is_no_other(words_run, tmp_path):
    model_dir, _ = words_run
    copy = shutil.copy(model_dir / "words.model", tmp_path / "copy.model")
    saved = json.loads((model_dir / "vocabularies.json").read_text())
    assert saved["inputs"]["kind"] == "SentencePieceVocabulary"
    saved["inputs"]["file"] = str(copy)
    check_vocabularies(str(model_dir), saved)
