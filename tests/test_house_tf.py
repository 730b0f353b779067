"""How short the ways through the package are: numbers that its design promises."""

import ast
import os
import traceback
import warnings

import pytest
from tensorflow.python.framework import func_graph

import remixer_tf as rt
from remixer_tf.commands import run_command
from tests.documentation import blocks
from tests.test_imports import modules
from tests.tiny_run import BYTES, TINY

PACKAGE = os.path.dirname(rt.__file__) + os.sep
PAGE = "docs/architecture.md"
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
    """The package's functions on the stack at the first product that is traced.

    Pairs of a file and a name, the outermost first.
    """
    found = []
    create = func_graph.FuncGraph._create_op_internal

    def watched(self, op_type, *args, **kwargs):
        if op_type in PRODUCTS and not found:
            codes = [frame.f_code for frame, _ in traceback.walk_stack(None)]
            found.extend(
                (code.co_filename.removeprefix(PACKAGE), name_of(code))
                for code in reversed(codes)
                if code.co_filename.startswith(PACKAGE)
            )
        return create(self, op_type, *args, **kwargs)

    monkeypatch.setattr(func_graph.FuncGraph, "_create_op_internal", watched)
    return found


def name_of(code):
    """`TrainStep._loop.step`; a lambda has the name of what makes it."""
    return code.co_qualname.replace(".<locals>", "").removesuffix(".<lambda>")


def drawn(heading):
    """The frames that docs/architecture.md draws below a line, see `frames`."""
    text = "\n".join(block.code for block in blocks("text", PAGE))
    (part,) = (x for x in text.split("\n\n") if x.startswith(f" {heading}\n"))
    return [tuple(line.split()[:2]) for line in part.splitlines()[1:]]


@pytest.mark.slow
def test_the_way_of_a_batch(frames, tmp_path):
    run_command("train", [f"--model_dir={tmp_path}/run", *BYTES, *TINY])
    assert frames == drawn("remixer_tf train")
    assert [name for _, name in frames].index("train") >= len(frames) - 16


@pytest.mark.slow
def test_the_way_of_a_prompt(frames, bytes_run, tmp_path):
    file = tmp_path / "in"
    file.write_text("a cat\n")
    arguments = [f"--model_dir={bytes_run}", f"--input={file}", f"--output={file}.out"]
    run_command("infer", arguments)
    both = drawn("both")
    assert frames == drawn("remixer_tf infer") + both and len(frames) <= 18
    frames.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rt.load(bytes_run).generate("a cat slept")
    assert frames == drawn("run.generate") + both and len(frames) <= 16


@pytest.mark.slow
def test_the_way_of_a_score_is_short(frames, bytes_run, tmp_path):
    file = tmp_path / "in"
    file.write_text("a cat\tslept\n")
    arguments = [f"--model_dir={bytes_run}", f"--input={file}", f"--output={file}.out"]
    run_command("score", arguments)
    assert len(frames) <= 16, frames
