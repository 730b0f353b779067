"""TensorFlow's engine and JAX's give the same losses and weights, on any mesh.

JAX runs in a process of its own, which counts the CPU as four devices, and then in two
processes of two devices each.
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from remixer_tf.checkpoints import sharded
from remixer_tf.checkpoints.reading import available_steps
from remixer_tf.training.stop_signal import PREEMPTED
from tests.continuing import read_losses, read_weights
from tests.engines import engine_runs
from tests.engines.engine_runs import (
    CASES,
    CASES_OF_TWO,
    KINDS,
    PERIOD,
    STEPS,
    Case,
)
from tests.engines.test_multi_worker import free_ports
from tests.made_once import made_once

pytestmark = pytest.mark.slow


def assert_same_run(one, other, tolerance=1e-5):
    """Compares the losses, and the weights at the end, of the runs in two folders."""
    expected, losses = read_losses(one), read_losses(other)
    assert losses.keys() == expected.keys() and len(losses) == STEPS // 2
    for step, (loss,) in expected.items():
        for other_loss in losses[step]:  # Two, of a step that a kill undid.
            assert other_loss == pytest.approx(loss, abs=tolerance), step
    expected, weights = (read_weights(folder, STEPS) for folder in (one, other))
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(
            weights[name], value, rtol=0, atol=tolerance, err_msg=name
        )


def assert_equal(arrays, others):
    assert others.keys() == arrays.keys()
    for name, value in arrays.items():
        np.testing.assert_array_equal(others[name], value, err_msg=name)


@pytest.fixture
def runs(request, tmp_path_factory):
    """The folder of the runs: on JAX, and KIND_tf and killed_tf on TensorFlow.

    Those of the part `more` are there for tests that are marked as slower.
    """
    folder = made_once("engines", make_first, tmp_path_factory)
    if request.node.get_closest_marker("slower"):
        made_once("more_engines", lambda _: make_more(folder), tmp_path_factory)
    return folder


def make_first(folder):
    engine_runs.write_start(folder, "first")
    alone = start(4, "first", folder)
    for kind in KINDS["first"]:
        engine_runs.run(folder, f"{kind}_tf", Case(kind))
    while not (folder / "killed" / "is_dead").exists() and alone.poll() is None:
        time.sleep(0.1)
    if alone.poll() is None:
        engine_runs.run(folder, "killed_tf", Case("t5_1_1", goes_on="killed"))
    finish(alone)
    start_two("first", folder)


def make_more(folder):
    engine_runs.write_start(folder, "more")
    alone = start(4, "more", folder)
    for kind in KINDS["more"]:
        engine_runs.run(folder, f"{kind}_tf", Case(kind))
    finish(alone)
    start_two("more", folder)


def start_two(part, folder):
    """Has two processes make the runs of a part."""
    (port,) = free_ports(1)
    finish(*(start(2, part, folder, f"localhost:{port}", i) for i in range(2)))


def start(devices, part, folder, *arguments):
    """Starts `engine_runs` on JAX, with so many devices."""
    count = f"--xla_force_host_platform_device_count={devices}"
    arguments = map(str, [part, folder, *arguments])
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engines.engine_runs", *arguments],
        env={
            **os.environ,
            "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
            "KERAS_BACKEND": "jax",
            "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {count}",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        },
        cwd=pathlib.Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes):
    """Waits until they have ended well."""
    for process in processes:
        _, errors = process.communicate()
        assert process.returncode == 0, errors[-3000:]


def first_and_more(first, more):
    """Cases of a test: those of `first`, and as slower ones those of `more`."""
    return [*first, *(pytest.param(name, marks=pytest.mark.slower) for name in more)]


@pytest.mark.parametrize("kind", first_and_more(KINDS["first"], KINDS["more"]))
def test_jax_gives_what_tensorflow_gives(runs, kind):
    assert_same_run(runs / f"{kind}_tf", runs / f"{kind}_one")


def names_on_meshes(part):
    """The runs of a part on a mesh, from the start to the end."""
    cases = CASES[part] | CASES_OF_TWO[part]
    return [n for n, case in cases.items() if case.layout != "one" and not case.goes_on]


@pytest.mark.parametrize(
    "name", first_and_more(names_on_meshes("first"), names_on_meshes("more"))
)
def test_every_mesh_gives_what_one_device_gives(runs, name):
    of_one = name.removesuffix("_by_two").rpartition("_")[0]
    assert_same_run(runs / f"{of_one}_one", runs / name)


@pytest.mark.parametrize("name", first_and_more(["t5_1_1_2x2_by_two"], ["dropout_2x2"]))
def test_a_run_on_a_mesh_goes_on_bitwise(runs, name):
    whole, again = (read_weights(runs / n, STEPS) for n in (name, f"{name}_again"))
    if name.startswith("dropout"):
        assert any("seed_generator" in path for path in whole)
    assert_equal(whole, again)


@pytest.mark.slower
def test_a_run_goes_on_on_another_mesh(runs):
    assert CASES["more"]["t5_1_1_4x1"].goes_on == "t5_1_1_2x2"
    assert_same_run(runs / "t5_1_1_one", runs / "t5_1_1_4x1")


@pytest.mark.slower
def test_a_run_in_float16_goes_on_on_another_mesh(runs):
    assert CASES["more"]["half_2x2"].goes_on == "half_one"
    assert_same_run(runs / "half_one", runs / "half_2x2", tolerance=0.01)
    scales = read_weights(runs / "half_2x2", STEPS, "loss_scale")
    assert scales == {"scale": 2.0**15, "finite_steps": STEPS}


def test_a_killed_run_goes_on(runs):
    """Bitwise on its mesh, and from the same checkpoint on another engine."""
    assert available_steps(runs / "killed" / "checkpoints") == [PERIOD]
    for group in ("model", "optimizer"):
        whole, again = (
            read_weights(runs / name, STEPS, group)
            for name in ("t5_1_1_2x2", "killed_2x2")
        )
        assert_equal(whole, again)
    assert_same_run(runs / "t5_1_1_one", runs / "killed_tf")


@pytest.mark.slower
def test_a_killed_run_goes_on_on_another_mesh(runs):
    assert_same_run(runs / "t5_1_1_one", runs / "killed_4x1")


@pytest.mark.parametrize("group", ["model", "optimizer"])
def test_both_formats_hold_the_same(runs, group):
    folders = [runs / "t5_1_1_2x2", runs / "killed"]
    formats = [sharded.is_sharded(f"{f}/checkpoints/{PERIOD}") for f in folders]
    assert formats == [False, True]
    assert_equal(*(read_weights(folder, PERIOD, group) for folder in folders))


@pytest.mark.parametrize("layout", ["2x2", "zero"])
def test_a_mesh_begins_with_the_numbers_of_one_device_in_parts(runs, layout):
    one, made = (np.load(runs / "made" / f"{name}.npz") for name in ("one", layout))
    assert made.keys() == one.keys()
    split = set()
    for name, value in one.items():
        if name.startswith("part/"):
            split |= {name} if made[name].prod() < value.prod() else set()
        elif layout == "zero":  # Large ones are computed in parts there.
            np.testing.assert_allclose(made[name], value, rtol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(made[name], value, err_msg=name)
    for name in ("model/encoder_decoder/token_embedding/embeddings", "optimizer/"):
        assert any(n.startswith(f"part/{name}") for n in split), name


@pytest.mark.slower
def test_one_process_goes_on_with_what_two_wrote(runs):
    files = (runs / "remixer_1x4_by_two/checkpoints/20").iterdir()
    names = {file.name.partition(".")[0] for file in files}
    assert names == {"state", "data-0-of-1", "summary", "checksums"}
    engine_runs.run(runs, "alone", Case("remixer", goes_on="remixer_1x4_by_two"))
    assert_same_run(runs / "remixer_one", runs / "alone")


@pytest.mark.slower
def test_one_process_does_not_go_on_in_data_that_two_read(runs):
    with pytest.raises(ValueError, match=r"(?s)read in 2 part.*read in 1 part"):
        engine_runs.run(runs, "refused", Case("mixer", goes_on="mixer_4x1_by_two"))


@pytest.mark.slower
@pytest.mark.parametrize(
    ("name", "reference"),
    [
        *((f"gmlp_{layout}", "gmlp_tf") for layout in ("one", "2x2", "2x2_by_two")),
        *((f"experts_{layout}", "experts_one") for layout in ("data", "axis")),
    ],
)
def test_every_mesh_evaluates_alike(runs, name, reference):
    expected, found = (
        json.loads((runs / n / f"eval/tiny/dev/{STEPS}/loss.json").read_text())
        for n in (reference, name)
    )
    assert len(found["rows"]) == len(found["tokens"]) == 8
    assert found["rows"] == pytest.approx(expected["rows"], rel=1e-5)
    assert found["tokens"] == expected["tokens"]


def test_the_command_evaluates_in_two_processes(runs, clear_gin):
    engine_runs.score_dev(runs / "bytes", "alone")
    alone, by_two = (
        json.loads((runs / f"bytes/eval/{n}/mini_cogs/dev/1/loss.json").read_text())
        for n in ("alone", "by_two")
    )
    assert by_two["key"]["checkpoint"] == alone["key"]["checkpoint"]
    assert by_two["metrics"] == pytest.approx(alone["metrics"], rel=1e-5)


@pytest.fixture
def seen_by_two(runs):
    """What each of the two processes saw, a list of dictionaries."""
    paths = [runs / f"by_two_{index}.json" for index in range(2)]
    return [json.loads(path.read_text()) for path in paths]


def test_sigterm_to_one_process_stops_both_at_the_same_step(seen_by_two):
    """The run that resumes bitwise was stopped so, and began at the last step saved."""
    for seen in seen_by_two:
        # In the first call the signal came, before the second it was told.
        assert seen["stopped"] == [PREEMPTED, 2, [PERIOD, PERIOD + 4]]
        assert seen["calls"] == (STEPS - (PERIOD + 4)) // 2


def test_two_processes_miss_each_other(seen_by_two):
    for norm, of_whole_model in (seen["norms"] for seen in seen_by_two):
        assert of_whole_model == pytest.approx(norm, rel=1e-6)
    assert "Process 1 of 2 did not come within 0.5 s" in seen_by_two[0]["missing"]


def test_programs_are_kept(runs):
    assert list((runs / "programs").glob("jit_train_steps-*"))


def test_commands_answer_and_score_as_on_tensorflow(runs, clear_gin):
    """On one of JAX's devices, and on four, which share four rows where three are."""
    folder = runs / "bytes"
    assert sharded.is_sharded(folder / "checkpoints" / "1")
    engine_runs.ask(folder, "tensorflow")
    files = [file for name in ("jax", "jax_2x2") for file in (folder / name).iterdir()]
    assert len(files) == 4
    for file in files:
        rows, expected = (
            [line.split("\t") for line in path.read_text().splitlines()]
            for path in (file, folder / "tensorflow" / file.name)
        )
        scored = 0 if "score" in file.name else 1
        assert len(rows) == len(expected) == 2 + scored
        for row, other in zip(rows, expected, strict=True):
            assert float(row.pop(scored)) == pytest.approx(
                float(other.pop(scored)), abs=2e-4
            )
            assert row == other


COLLECTIVES = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"


def read_collectives(path):
    """Returns {kind: shapes of what comes out} of a program's text; some are joined."""
    found = {}
    text = re.sub(r"/\*.*?\*/", "", path.read_text())
    for shapes, kind in re.findall(rf"= (\S.*?) ({COLLECTIVES})(?:-start)?\(", text):
        shapes = re.findall(r"\w+\[([\d,]*)\]", shapes)
        found.setdefault(kind, []).extend(
            tuple(map(int, filter(None, shape.split(",")))) for shape in shapes
        )
    return found


@pytest.mark.parametrize(
    "name",
    first_and_more(["t5_1_1_2x2"], ["remixer_2x2", "t5_1_1_4x1", "t5_1_1_1x4"]),
)
def test_parts_are_added_up_and_nothing_else_moves(runs, name):
    found = read_collectives(runs / name / "program.txt")
    assert found.keys() == {"all-reduce"}
    length, vocab = 7, (40, 20, 10)  # whole, and its parts
    logits = [
        s for s in found["all-reduce"] if s[-2:-1] == (length,) and s[-1] in vocab
    ]
    assert not logits


@pytest.mark.slower
def test_the_halves_of_a_gate_are_split_alike(runs):
    """The projection's weights move, and no activations."""
    found = read_collectives(runs / "gmlp_2x2" / "program.txt")
    assert found.keys() == {"all-reduce", "all-to-all", "all-gather"}
    # A half of each half, of 12 channels, for kernel and bias.
    assert set(found["all-to-all"]) == {(8, 1, 1, 3), (1, 1, 1, 3)}
    assert set(found["all-gather"]) == {(6,)}  # gradients of the norm's vectors


@pytest.mark.slower
@pytest.mark.parametrize(
    ("program", "sums", "lookups"),
    [("program", {"all-reduce"}, 4), ("evaluation", set(), 2)],
)
def test_fully_sharded_matrices_are_gathered_and_batches_are_not(
    runs, program, sums, lookups
):
    file = runs / "t5_1_1_zero" / f"{program}.txt"
    found = read_collectives(file)
    assert found.keys() == {"all-gather", "all-to-all"} | sums
    weights = read_weights(runs / "t5_1_1_one", STEPS).values()
    of_weights = {value.shape for value in weights}
    of_weights |= {shape[::-1] for shape in of_weights}
    # But ids: every device looks up its part of the width for all rows ...
    others = {shape for shape in found["all-gather"] if shape not in of_weights}
    assert others == {(8, 10, 1), (8, 7, 1)}
    # ... and sends each row where it belongs: two lookups, and in training gradients.
    sent = re.findall(r" all-to-all\(.*op_name=\"(.*)\"", file.read_text())
    assert len(sent) == lookups and all("/token_embedding/" in name for name in sent)


@pytest.mark.slower
@pytest.mark.parametrize("name", ["experts_data", "experts_axis"])
def test_tokens_go_to_their_experts_and_back(runs, name):
    """Two all-to-alls forward, and two backward; experts stay."""
    text = (runs / name / "program.txt").read_text()
    sent = collections.Counter(
        re.search(r"(transpose\()?jvp.*/layer_0_experts/", line)[0]
        for line in re.findall(r" all-to-all\(.*op_name=\"(.*?)\"", text)
    )
    assert len(sent) == 2 and set(sent.values()) == {2}, sent
    found = read_collectives(runs / name / "program.txt")
    assert found.keys() == {"all-reduce", "all-to-all", "all-gather"}
    # What routers choose from: probabilities of four groups' tokens.
    assert set(found["all-gather"]) == {(4, 14, 4)}
    # The gradients of two experts on each device, from the other half of the data.
    added_up = {shape for shape in found["all-reduce"] if 12 in shape}
    assert added_up == ({(2, 8, 12), (2, 12, 8)} if name == "experts_axis" else set())


@pytest.mark.slower
@pytest.mark.parametrize("layout", ["data", "axis"])
@pytest.mark.parametrize("name", ["evaluating", "training"])
def test_experts_that_drop_nothing_stay_on_their_devices(runs, name, layout):
    one, mesh = (np.load(runs / f"experts/{of}.npz") for of in ("one", layout))
    assert mesh.keys() == one.keys()
    for key, value in one.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(mesh[key], value, atol=1e-6 * scale, err_msg=key)
    found = read_collectives(runs / "experts" / f"{name}_{layout}.txt")
    weights = {(4, 8, 12), (4, 12, 8)}
    assert found.keys() >= {"all-gather", "reduce-scatter"}
    assert not weights & {shape for shapes in found.values() for shape in shapes}
