"""A bad argument of a loaded run's method is one line, whoever finds it."""

import keras
import numpy as np
import pytest

import remixer_tf as rt

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
    ({"seed": 1.5}, "seed must be an integer"),
    ({"allowed": "cat"}, "allowed must be a list of str"),
    ({"allowed": 5}, "allowed must be a list of str"),
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
    ("score", ["a", LONE], {}, "unpaired surrogate"),
    ("perplexity", [LONE], {}, "unpaired surrogate"),
    ("perplexity", ["abc"], {}, "perplexity.. is for language models"),
    ("score", [["a"], ["b"]], {"batch_size": 0}, "batch_size must be an integer"),
    ("score", [["a"], ["b"]], {"batch_size": "a"}, "batch_size must be an integer"),
    ("score", [["a"], "a"], {}, "the targets are a str, and the other a list"),
    ("score", ["a", ["a"]], {}, "the inputs are a str, and the other a list"),
    ("score", [["a"], ["a", "b"]], {}, "as many inputs as targets"),
    ("evaluate", ["t.tsv"], {"table": "x"}, "table must be a dictionary"),
    ("evaluate", [5], {}, "Expected: the path of a table"),
]
FITS = [
    ({"table": "x"}, "table must be a dictionary"),
    ({"table": [1]}, "table must be a dictionary"),
    ({"table": {"inputs": "{nope}"}}, "has no column 'nope'"),
    ({"steps": "a"}, "steps must be an integer"),
    ({"steps": 0}, "steps must be an integer"),
    ({"steps": 1.5}, "steps must be an integer"),
    ({"batch_size": 0}, "batch_size must be an integer"),
    ({"batch_size": "x"}, "batch_size must be an integer"),
    ({"learning_rate": "x"}, "learning_rate must be a number > 0"),
    ({"learning_rate": -1}, "learning_rate must be a number > 0"),
    ({"learning_rate": float("nan")}, "learning_rate must be a number > 0"),
    ({"bindings": "Run.x=1"}, "bindings must be a list of str"),
    ({"bindings": None}, "bindings must be a list of str"),
    ({"bindings": [5]}, "bindings must be a list of str"),
    # Found when training begins, after the folder is written.
    ({"bindings": ["Schedule.log_period = 0"]}, "log_period"),
]


@pytest.fixture(scope="module")
def loaded(tiny_run):
    return rt.load(tiny_run)


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


@pytest.mark.parametrize(("options", "message"), FITS, ids=ascii)
def test_a_refused_fit_leaves_no_folder(loaded, table, tmp_path, options, message):
    folder = tmp_path / "new"
    refused(message, loaded.fit, table, folder, **{"steps": 1, **options})
    assert not folder.exists()


def test_a_fit_without_a_folder(loaded, table):
    refused("model_dir must be the path", loaded.fit, table, None)


def test_fit_refuses_adapters(tiny_run, table, tmp_path):
    run = rt.load(tiny_run)
    run.model.enable_lora(2)
    refused("has LoRA adapters", run.fit, table, tmp_path / "new", steps=1)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bindings": [5]}, "bindings must be a list of str"),
        ({"bindings": "Run.seed = 1"}, "bindings must be a list of str"),
        ({"bindings": None}, "bindings must be a list of str"),
        ({"modules": "os"}, "modules must be a list of str"),
        ({"modules": None}, "modules must be a list of str"),
    ],
    ids=str,
)
def test_loading(tiny_run, options, message):
    refused(message, rt.load, tiny_run, **options)


def test_a_stride_is_a_number(lm_run):
    lm = rt.load(lm_run)
    for stride in ("a", 0, 1.5):
        refused("from 1 to .*Received", lm.perplexity, "to be", stride=stride)
    refused("from 1 to", lm.perplexity, "to be", stride=10**6)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's")
def test_encoders(classifier_run, image_run):
    encoder, vision = rt.load(classifier_run), rt.load(image_run)
    refused("unpaired surrogate", encoder.classify, [LONE])
    for shape in ((0, 4, 3), (4, 0, 3)):
        image = np.zeros(shape, np.uint8)
        refused("at least one pixel", vision.classify, image)


def test_short_windows_have_room_for_questions(span_run):
    """BERT's 64 tokens for a question leave none of 40 for a text."""
    lengths = {"inputs": 40, "token_types": 40, "answerable": 40, "targets": 2}
    bindings = [f"FEATURE_LENGTHS = {lengths}", "NULL_THRESHOLD = 1e9"]
    spans = rt.load(span_run, bindings=bindings)
    text = "it was Ann who came first " * 4
    assert spans.answer("who?", text) in text
    refused("longer than 20 tokens", spans.answer, "who " * 6, text, on_long="raise")
