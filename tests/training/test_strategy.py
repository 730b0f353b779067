"""One device and two give the same numbers."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from remixer_tf.training.strategy import get_strategy


@pytest.fixture(scope="module")
def runs():
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.mirrored_worker"],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("optimizer", ["adafactor 1", "adamw 4"])
def test_two_replicas_equal_one_device(runs, optimizer, jit):
    one, two = runs[f"single {optimizer} False"], runs[f"mirrored {optimizer} {jit}"]
    assert (one["replicas"], two["replicas"]) == (1, 2)
    for call, expected in zip(two["calls"], one["calls"], strict=True):
        for name, value in expected.items():
            np.testing.assert_allclose(call[name], value, rtol=1e-5, err_msg=name)
    for replicas, (expected,) in zip(two["weights"], one["weights"], strict=True):
        np.testing.assert_array_equal(*replicas)
        np.testing.assert_allclose(replicas[0], expected, atol=1e-5)


def test_replicas_draw_different_dropout_masks_from_one_state(runs):
    (one, two), (three, four) = runs["dropout"]["draws"]
    masks = {tuple(mask) for mask in (one, two, three, four)}
    assert len(masks) == 4
    assert runs["dropout"]["states"][0] == runs["dropout"]["states"][1]


def test_batch_that_does_not_divide_names_both_numbers(runs):
    assert "batch of 3 examples" in runs["indivisible"]
    assert "2 replicas" in runs["indivisible"]


def test_unknown_strategy_names_the_known():
    with pytest.raises(
        ValueError, match="'magic'.*'single', 'mirrored', 'multi_worker'"
    ):
        get_strategy("magic")
