"""Exports that answer texts: read, checked, and refused in one line."""

import json

import numpy as np
import pytest
import seqio

from remixer_tf.checkpoints.export_folder import is_export
from remixer_tf.errors import MissingFileError, UserError
from remixer_tf.serving import converted
from remixer_tf.serving.exported_text import ExportedText
from remixer_tf.training.run_folder import check_writable
from tests.serving.test_converted import LENGTH, fails, fake_graph, fake_runtime, same

LENGTHS = {"inputs": LENGTH, "targets": LENGTH}


def task(extra_ids=0):
    feature = seqio.Feature(seqio.ByteVocabulary(extra_ids), add_eos=True)
    features = {"inputs": feature, "targets": feature}
    source = seqio.FunctionDataSource(lambda split, shuffle_files: None, splits=())
    return seqio.Task("echo", source, features, [seqio.preprocessors.append_eos])


@pytest.fixture
def export(tmp_path, monkeypatch):
    """The folder of an export that answers with the question, up to its EOS."""
    runtime = fake_runtime(same)
    runtime.MODULES = ("json",)
    monkeypatch.setitem(converted.RUNTIMES, "fake", runtime)
    converted.export_tokens(fake_graph(), task(), "fake", str(tmp_path / "1"))
    (tmp_path / "1" / "operative_config.gin").write_text("")
    return tmp_path / "1"


def test_texts_are_read_as_the_task_says(export):
    assert is_export(export)
    model = ExportedText(str(export), task(), LENGTHS)
    answers = model.answer_all([b"too long", b"a", b"", b"short"], 2)
    assert answers["outputs"].tolist() == [b"too lo", b"a", b"", b"short"]
    assert answers["trimmed"].tolist() == [True, False, False, False]
    assert answers["scores"].tolist() == [0, 0, 0, 0]


def test_several_answers(export, monkeypatch):
    def two(inputs):
        both = np.stack([inputs, inputs[:, ::-1]], axis=1)
        scores = np.tile(np.array([[0, -1]], "float32"), [len(inputs), 1])
        return same(inputs) | {"all_outputs": both, "all_scores": scores}

    monkeypatch.setattr(converted.RUNTIMES["fake"], "load", lambda path: two)
    answers = ExportedText(str(export), task(), LENGTHS).answer_all([b"abcdef"], 1)
    assert answers["all_outputs"].tolist() == [[b"abcdef", b"fedcba"]]
    assert answers["all_scores"].tolist() == [[0, -1]]


def described(**changes):
    def damage(folder):
        path = folder / "model.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return damage


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda x: (x / "model.json").write_text("[1"), "does not describe"),
        (lambda x: (x / "model.json").write_bytes(b"[" * 3_000_000), "not describe"),
        (described(format="Other"), "does not describe an export of"),
        (described(file="../model.fake"), "model.json is damaged"),
        (described(sha256=None), "model.json is damaged"),
        (described(max_input_length=2**40), "model.json is damaged"),
        (described(language_model="yes"), "model.json is damaged"),
        (described(version="999.0"), "written by remixer_tf 999.0"),
        (lambda x: (x / "model.fake").write_text("cut"), "its SHA-256 differs"),
    ],
)
def test_a_damaged_folder_is_refused(export, damage, message):
    damage(export)
    with pytest.raises(UserError, match=message) as error:
        ExportedText(str(export), task(), LENGTHS)
    assert "\n" not in str(error.value)


def test_all_else_needs_the_run(export, tmp_path):
    with pytest.raises(UserError, match="is an export: remixer_tf infer"):
        check_writable(str(export))
    other = tmp_path / "run"
    other.mkdir()
    (other / "model.json").write_text('{"name": "of another program"}')
    assert not is_export(other)
    check_writable(str(other))


def test_a_missing_file_and_another_vocabulary(export):
    with pytest.raises(UserError, match="another vocabulary of inputs"):
        ExportedText(str(export), task(extra_ids=9), LENGTHS)
    (export / "model.fake").unlink()
    with pytest.raises(MissingFileError, match="lacks model.fake"):
        ExportedText(str(export), task(), LENGTHS)
    (export / "operative_config.gin").unlink()
    with pytest.raises(UserError, match="export it again"):
        is_export(export)


def test_an_error_of_the_runtime_is_one_line(export, monkeypatch):
    monkeypatch.setattr(converted.RUNTIMES["fake"], "load", lambda path: fails)
    model = ExportedText(str(export), task(), LENGTHS)
    with pytest.raises(UserError, match="model.fake cannot be run: no kernel"):
        model.answer_all([b"a"], 1)


def test_a_missing_runtime_is_named(export, monkeypatch):
    monkeypatch.setattr(converted.RUNTIMES["fake"], "MODULES", ("no_such_runtime",))
    with pytest.raises(ImportError, match="'remixer_tf.fake.'"):
        ExportedText(str(export), task(), LENGTHS)
