"""The examples of docstrings run."""

import doctest
import inspect
import re

import pytest
import tensorflow as tf

import remixer_tf as rt
from remixer_tf import loading, named_models
from remixer_tf.models.keras_model import KerasModel

pytestmark = pytest.mark.usefixtures("clear_gin")
ASKED = {
    name: member
    for name, member in inspect.getmembers(rt.LoadedRun, callable)
    if not name.startswith("_") and name != "of_folder"
}
# Runs in examples, and the fixtures that train them.
RUNS = {
    "run": "bytes_run",
    "lm": "lm_run",
    "encoder": "classifier_run",
    "spans": "span_run",
}
FRONT = loading.create, loading.load, named_models.presets
ROWS = "inputs\ttargets\nthe cat slept\tslept\n"


class Checker(doctest.OutputChecker):
    """Without an expected output, any is right: training prints its steps."""

    def check_output(self, want, got, optionflags):
        return not want or super().check_output(want, got, optionflags)


def check(function, **names):
    """Runs the example of a docstring; returns how many lines it has."""
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(function, function.__name__, globs={"rt": rt, "tf": tf})
    test.globs |= names
    runner = doctest.DocTestRunner(Checker(), optionflags=doctest.ELLIPSIS)
    found = runner.run(test)
    assert not found.failed
    return found.attempted


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            n,
            marks=[pytest.mark.slower] * (n in ("answer", "export", "fit")),
        )
        for n in ASKED
    ],
)
def test_questions_to_a_run(name, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for table in ("train.tsv", "dev.tsv"):
        (tmp_path / table).write_text(ROWS)
    method = ASKED[name]
    runs = {
        run: rt.load(request.getfixturevalue(fixture))
        for run, fixture in RUNS.items()
        if re.search(rf">>>.*\b{run}\.", method.__doc__)
    }
    assert check(method, **runs)


@pytest.mark.parametrize(
    "function", [*ASKED.values(), *FRONT], ids=lambda x: x.__name__
)
def test_arguments_and_results_have_types(function):
    signature = inspect.signature(function)
    named = [p for p in signature.parameters.values() if p.name != "self"]
    assert all(p.annotation is not p.empty for p in named)
    assert signature.return_annotation is not signature.empty


def test_the_front_door(bytes_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN").symlink_to(bytes_run)
    of_models = (KerasModel.enable_lora, KerasModel.freeze, rt.models.Lora)
    for function in (*FRONT, *of_models):
        assert check(function)
