"""A bad argument of a loaded run's method is one line, whoever finds it."""

import shutil

import gin
import keras
import numpy as np
import pytest

import remixer_tf as rt
from remixer_tf.commands import errors_in_one_line, run_command

pytestmark = pytest.mark.usefixtures("clear_gin")
SEARCHES = [
    ({"beams": "3"}, "beams must be an integer"),
    ({"beams": None}, "beams must be an integer"),
    ({"beams": True}, "beams must be an integer"),
    ({"beams": 0}, "beams must be an integer"),
    ({"beams": 10**7}, "beams must be at most .*Received: beams=10000000"),
    ({"beams": 2, "n_best": 3}, "n_best=3, beams=2"),
    ({"beams": 2, "n_best": "x"}, "n_best must be an integer"),
    ({"beams": 2, "rules": "x"}, "rules must be T5Rules.*Received: rules='x'"),
    ({"beams": 2, "rules": None}, "rules must be T5Rules"),
    ({"beams": 2, "rules": rt.decoding.T5Rules}, "rules must be T5Rules"),
    ({"seed": "x"}, "seed must be an integer. Received: seed='x'"),
    ({"seed": None}, "seed must be an integer"),
    ({"top_p": np.ones(2)}, "top_p must be a number"),
    ({"top_p": True}, "top_p must be a number"),
    ({"num_samples": 10**9}, "num_samples must be at most 65,536"),
    ({"allowed": {"cat": 1}}, "allowed must be a list of str"),
    ({"allowed": [b"cat"]}, "allowed must be a list of str"),
    ({"allowed": [[10**12]]}, "token ids, int32 above 0"),
    ({"max_new_tokens": 3}, "Nearest: max_length"),
    ({"num_beams": 3}, "Nearest: beams"),
    ({"max_lenght": 3}, "Nearest: max_length"),
    ({"min_length": 2, "max_length": 2}, "min_length=2, max_length=2"),
    ({"seed": 1.5}, "seed must be an integer"),
    ({"seed": True}, "seed must be an integer"),
    ({"allowed": "cat"}, "allowed must be a list of str"),
    ({"allowed": 5}, "allowed must be a list of str"),
    ({"allowed": np.array("cat")}, "allowed must be a list of str"),
    ({"allowed": [1.5]}, "allowed must be a list of answers, each a list of token"),
    ({"allowed": [[1.5]]}, "allowed must be a list of answers"),
    ({"allowed": [None]}, "allowed must be a list of answers"),
    ({"allowed": ["\ud800"]}, "unpaired surrogate"),
    ({"allowed": []}, "Allowed answers must have"),
    ({"min_length": "a"}, "min_length must be an integer of at least 0"),
    ({"min_length": 99}, "min_length=99, max_length=1"),
    ({"max_length": "a"}, "max_length must be an integer"),
    ({"max_length": 0}, "max_length must be an integer"),
    ({"max_length": 10**9}, "max_length must be at most 65,536"),
    ({"skip_special_tokens": "yes"}, "skip_special_tokens must be True or False"),
    ({"scores": "x"}, "scores must be True or False"),
]
LONE = "a \ud800"
CALLS = [
    ("generate", [LONE], {}, "unpaired surrogate, '.ud800'"),
    ("generate", [["a", LONE]], {}, "unpaired surrogate"),
    ("generate", [{"a"}], {}, "Expected: a str or a list of str"),
    ("score", ["a", LONE], {}, "unpaired surrogate"),
    ("perplexity", [LONE], {}, "unpaired surrogate"),
    ("perplexity", ["abc"], {}, "perplexity.. is for language models"),
    ("score", [["a"], ["b"]], {"batch_size": 0}, "batch_size must be an integer"),
    ("score", [["a"], ["b"]], {"batch_size": "a"}, "batch_size must be an integer"),
    ("score", [["a"], "a"], {}, "Received: a list of 1 and a str."),
    ("score", ["a", ["a"]], {}, "Received: a str and a list of 1."),
    ("score", [["a"], ["a", "b"]], {}, "two lists of as many str.*: a list of 1 and a"),
    ("evaluate", ["t.tsv"], {"table": "x"}, "table must be a dictionary"),
    ("evaluate", [5], {}, "table must be the path of a file"),
    ("evaluate", [], {"table": {}}, "which is missing"),
    ("evaluate", [""], {}, "table must be the path of a file"),
    ("evaluate", ["t.tsv"], {"table": {"files": 5}}, "table has 'files', which"),
]
FITS = [
    ({"table": "x"}, "table must be a dictionary"),
    ({"table": [1]}, "table must be a dictionary"),
    ({"table": {"inputs": "{nope}"}}, "has no column 'nope'"),
    ({"table": {"rows": 3}}, "table has 'rows', which fit.. and evaluate.. set"),
    ({"table": {"metrics": 5}}, "metrics must be a list of accuracy"),
    ({"steps": "a"}, "steps must be an integer"),
    ({"steps": 0}, "steps must be an integer"),
    ({"steps": 1.5}, "steps must be an integer"),
    ({"batch_size": 0}, "batch_size must be an integer"),
    ({"batch_size": "x"}, "batch_size must be an integer"),
    ({"learning_rate": "x"}, "learning_rate must be a number > 0"),
    ({"learning_rate": True}, "learning_rate must be a number > 0"),
    ({"learning_rate": -1}, "learning_rate must be a number > 0"),
    ({"learning_rate": float("nan")}, "learning_rate must be a number > 0"),
    ({"bindings": "Run.x=1"}, "bindings must be a list of str"),
    ({"bindings": None}, "bindings must be a list of str"),
    ({"bindings": [5]}, "bindings must be a list of str"),
    ({"bindings": ["include 'x.gin'"]}, "a gin file may include others"),
    ({"bindings": ["D_MODEL = 64"]}, "written by another model"),
    ({"bindings": ["D_MODEL = 1000000000"]}, "parameters, which need .* GB of memory"),
    # Found when training begins, after the folder is written.
    ({"bindings": ["Schedule.log_period = 0"]}, "log_period"),
]


@pytest.fixture(scope="module")
def loaded(bytes_run):
    return rt.load(bytes_run)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("inputs\ttargets\na b\tc\nd\te\n")
    return path


def refused(message, call, *args, **kwargs):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        call(*args, **kwargs)
    assert "\n" not in str(caught.value)
    assert "In call to configurable" not in str(caught.value)


@pytest.mark.parametrize(("search", "message"), SEARCHES, ids=str)
def test_searches(loaded, search, message):
    refused(message, loaded.generate, "the", **search)


@pytest.mark.parametrize(("name", "args", "kwargs", "message"), CALLS, ids=ascii)
def test_calls(loaded, name, args, kwargs, message):
    refused(message, getattr(loaded, name), *args, **kwargs)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's")
def test_a_stream_of_no_text(loaded):
    refused("unpaired surrogate", loaded.stream, LONE)


EXPORTS = [
    *(({"folder": x}, "folder must be the path") for x in (5, None, "", "a\0b", LONE)),
    ({"format": "savedmodel"}, "format must be one of saved_model"),
    ({"format": 5}, "format must be one of saved_model"),
    ({"max_rows": 0}, "max_rows must be an integer"),
    ({"max_rows": "x"}, "max_rows must be an integer"),
    ({"warm_up": "x"}, "warm_up must be True or False"),
]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's")
@pytest.mark.parametrize(("options", "message"), EXPORTS, ids=ascii)
def test_exports(loaded, tmp_path, options, message):
    options = {"folder": tmp_path / "export", **options}
    refused(message, loaded.export, **options)
    assert not (tmp_path / "export").exists()


BAD_TABLES = [
    (b"the cat\tslept\nthe dog\tran\n", "no column 'inputs'.*It has: the cat, slept. "),
    (b"inputs\ttargets\na\nb\tc\td\n", "2 of 2 rows are bad: .*expected 2.: 2"),
    (b"inputs\ttargets\na\t\xff\n", "1 of 1 rows are bad: .*invalid UTF-8: 1"),
    (None, "There is no file"),
]


@pytest.mark.parametrize(("content", "message"), BAD_TABLES, ids=ascii)
def test_evaluate_bad_tables(loaded, tmp_path, content, message, caplog):
    path = tmp_path / "bad.tsv"
    if content is not None:
        path.write_bytes(content)
    refused(message, loaded.evaluate, path)
    assert not caplog.records


def test_evaluate_a_folder_of_many_files(loaded, tmp_path, caplog):
    for i in range(3000):
        (tmp_path / f"{i:04}.txt").touch()
    refused("0000.txt, .*, and 2,995 more", loaded.evaluate, tmp_path)
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.parametrize(("options", "message"), FITS, ids=ascii)
def test_a_refused_fit_leaves_no_folder(loaded, table, tmp_path, options, message):
    folder = tmp_path / "new"
    refused(message, loaded.fit, table, folder, **{"steps": 1, **options})
    assert not folder.exists()


def test_a_fit_without_a_folder(loaded, table):
    refused("model_dir must be the path", loaded.fit, table, None)


@pytest.mark.slow
def test_a_fit_into_another_runs_folder(loaded, table, lm_run, tmp_path):
    folder = shutil.copytree(lm_run, tmp_path / "another")
    before = (folder / "operative_config.gin").read_text()
    refused("has another run already", loaded.fit, table, folder, steps=1)
    assert (folder / "checkpoints").exists()
    assert (folder / "operative_config.gin").read_text() == before


def test_fit_refuses_adapters(bytes_run, table, tmp_path):
    run = rt.load(bytes_run)
    run.model.enable_lora(2)
    refused("has LoRA adapters", run.fit, table, tmp_path / "new", steps=1)
    assert not (tmp_path / "new").exists()


NO_LIST = (5, [5], "Run.seed = 1", None, {"a": 1})
LOADS = [
    *(
        ({k: x}, f"{k} must be a list of")
        for k in ("bindings", "modules")
        for x in NO_LIST
    ),
    *(({"trust": x}, "trust must be True or False") for x in ("yes", 5, None)),
    *(({"step": x}, "step must be an integer") for x in ("bset", 1.5, True, [1], -1)),
    ({"modules": [""]}, "'' is no name of a module"),
    ({"modules": ["no_module"]}, "no module 'no_module'"),
    ({"bindings": ["D_MODEL"]}, "Expected: NAME = VALUE"),
    ({"bindings": ["include 'x.gin'"]}, "a gin file may include others"),
]
BINDINGS = [
    ("D_MODEL = 64", "of another shape"),
    ("FEATURE_LENGTHS = 5", "must be a dictionary"),
    ("FEATURE_LENGTHS = {'inputs': 0, 'targets': 3}", "must be an integer"),
    ("FEATURE_LENGTHS = {'inputs': 10}", "it has none for targets"),
]


@pytest.fixture(scope="module")
def folders(bytes_run, tmp_path_factory):
    """A run, and on TensorFlow the same weights in a folder to publish."""
    if keras.backend.backend() != "tensorflow":
        return [bytes_run]
    exported = tmp_path_factory.mktemp("mistakes") / "exported"
    return bytes_run, rt.load(bytes_run).export(exported, format="safetensors")


@pytest.mark.parametrize(("options", "message"), LOADS, ids=str)
def test_loading(folders, options, message):
    for folder in folders:
        refused(message, rt.load, folder, **options)


def ask(folder, binding):
    return rt.load(folder, bindings=[binding]).generate("A")


@pytest.mark.parametrize(("binding", "message"), BINDINGS)
def test_bindings_that_do_not_fit(folders, binding, message):
    for folder in folders:
        refused(message, ask, folder, binding)


@pytest.mark.parametrize(
    ("binding", "message"), [*BINDINGS, ("D_MODEL = 1000000000", "GB of memory")]
)
def test_the_shell_says_the_same(bytes_run, tmp_path, capsys, binding, message):
    (tmp_path / "in.txt").write_text("A\n")
    with pytest.raises(ValueError, match=message) as error:
        ask(bytes_run, binding)
    gin.clear_config()
    capsys.readouterr()
    arguments = [f"--model_dir={bytes_run}", f"--input={tmp_path / 'in.txt'}"]
    with pytest.raises(SystemExit) as end, errors_in_one_line():
        run_command("infer", [*arguments, f"--gin.{binding.replace(' = ', '=')}"])
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: {error.value}\n"


def test_a_run_that_needs_more_memory_than_there_is(bytes_run):
    """The embedding alone has 4 bytes for each of a billion numbers a token."""
    run = rt.load(bytes_run, bindings=["D_MODEL = 1000000000"])
    refused(
        "parameters, which need [0-9,.]+ GB of memory. There are", run.generate, "A"
    )


@pytest.mark.parametrize(
    "path", [5, None, b"x", ["a"], {"a": 1}, "", "a\0b"], ids=ascii
)
def test_what_is_no_path(path):
    refused("path must be the path of a file or folder", rt.load, path)


@pytest.mark.parametrize("name", [5, None, b"x", ["a"], np.ones(3)], ids=str)
def test_what_is_no_name(name):
    refused("name of a preset is a str", rt.create, name)
    refused("name of a preset is a str", rt.presets, name)


@pytest.mark.slow
def test_a_stride_is_a_number(lm_run):
    lm = rt.load(lm_run)
    for stride in ("a", 0, 1.5):
        refused("from 1 to .*Received", lm.perplexity, "to be", stride=stride)
    refused("from 1 to", lm.perplexity, "to be", stride=10**6)


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's")
def test_encoders(classifier_run, image_run):
    encoder, vision = rt.load(classifier_run), rt.load(image_run)
    refused("unpaired surrogate", encoder.classify, [LONE])
    for shape in ((0, 4, 3), (4, 0, 3)):
        image = np.zeros(shape, np.uint8)
        refused("at least one pixel", vision.classify, image)


@pytest.mark.slow
def test_short_windows_have_room_for_questions(span_run):
    """BERT's 64 tokens for a question leave none of 40 for a text."""
    lengths = {"inputs": 40, "token_types": 40, "answerable": 40, "targets": 2}
    bindings = [f"FEATURE_LENGTHS = {lengths}", "NULL_THRESHOLD = 1e9"]
    spans = rt.load(span_run, bindings=bindings)
    text = "it was Ann who came first " * 4
    assert spans.answer("who?", text) in text
    refused("longer than 20 tokens", spans.answer, "who " * 6, text, on_long="raise")
