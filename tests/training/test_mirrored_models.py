"""A Remixer with dropout on two devices: as on one, restorable, with two masks."""

import json
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def differences():
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.mirrored_models"],
        cwd=pathlib.Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_remixer_trains_alike_on_one_device_and_two(differences):
    assert differences["two devices, no dropout"] < 1e-4


def test_the_random_state_of_a_remixer_on_two_devices_is_restored(differences):
    assert differences["restored"] == 0


def test_the_replicas_of_a_remixer_draw_different_masks(differences):
    assert differences["masks"] > 1e-3
