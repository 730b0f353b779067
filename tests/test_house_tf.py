"""How short the ways through the package are: numbers that its design promises."""

import ast
import os
import traceback
import warnings

import pytest
from tensorflow.python.framework import func_graph

import remixer_tf as rt
from remixer_tf.commands import run_command
from tests.test_imports import modules
from tests.tiny_run import BYTES, TINY

PACKAGE = os.path.dirname(rt.__file__) + os.sep
PRODUCTS = "MatMul", "BatchMatMulV2", "Einsum"


def calls(tree):
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def test_no_part_is_looked_up_by_its_name():
    """Parts are imported, and a `Configuration` is asked for them by object."""
    asking = {"bound", "call", "is_set", "value"}
    asking |= {"bind_parameter", "get_bindings", "get_configurable", "query_parameter"}
    found = [
        f"{module}, line {call.lineno}"
        for module, source in modules().items()
        if not module.startswith("remixer_tf.configuration.")
        for call in calls(ast.parse(source))
        if getattr(call.func, "attr", "") in asking
        if call.args and isinstance(call.args[0], ast.Constant)
        if isinstance(call.args[0].value, str)
    ]
    assert not found


def test_of_gin_two_private_names_are_used_at_most():
    found = [
        f"{module}: {node.attr}"
        for module, source in modules().items()
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_")
        if ast.unparse(node.value).split(".")[0] == "gin"
    ]
    assert len(found) <= 2, found


def test_a_loaded_run_says_what_it_is_and_others_do_the_work():
    assert len(modules()["remixer_tf.loaded.run"].split("\n")) <= 300


@pytest.fixture
def frames(monkeypatch):
    """The package's functions on the stack at the first product that is traced."""
    found = []
    create = func_graph.FuncGraph._create_op_internal

    def watched(self, op_type, *args, **kwargs):
        if op_type in PRODUCTS and not found:
            stack = traceback.extract_stack()
            found.extend(f.name for f in stack if f.filename.startswith(PACKAGE))
        return create(self, op_type, *args, **kwargs)

    monkeypatch.setattr(func_graph.FuncGraph, "_create_op_internal", watched)
    return found


def below(frames, name):
    """How many functions `name` and those that it calls are."""
    return len(frames) - frames.index(name)


@pytest.mark.slow
def test_from_train_to_the_first_product(frames, tmp_path):
    run_command("train", [f"--model_dir={tmp_path}/run", *BYTES, *TINY])
    assert below(frames, "train") <= 16, frames


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "most"), [("infer", 16), ("generate", 15), ("score", 15)]
)
def test_from_a_question_to_the_first_product(
    command, most, frames, bytes_run, tmp_path
):
    if command == "generate":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rt.load(bytes_run).generate("a cat slept")
        assert below(frames, "generate") <= most, frames
        return
    file = tmp_path / "in"
    file.write_text("a cat\tslept\n")
    arguments = [f"--model_dir={bytes_run}", f"--input={file}", f"--output={file}.out"]
    run_command(command, arguments)
    assert below(frames, "run") <= most, frames
