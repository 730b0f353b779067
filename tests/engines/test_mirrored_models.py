"""A Remixer and mixtures on two devices: as on one, restorable, with two masks."""

import pytest

from tests.made_once import run_module

pytestmark = pytest.mark.slower


@pytest.fixture(scope="module")
def differences(tmp_path_factory):
    return run_module("tests.engines.mirrored_models", tmp_path_factory)


def test_a_remixer_trains_alike_on_one_device_and_two(differences):
    assert differences["two devices, no dropout"] < 1e-4


@pytest.mark.parametrize("router", ["switch", "base"])
def test_a_mixture_trains_alike_on_one_device_and_two(differences, router):
    """Its balance loss, weighing much, counts once."""
    assert differences[router] < 1e-4


def test_remat_and_logits_in_parts_change_nothing_on_two_devices(differences):
    """Dropout's masks are those of each replica."""
    assert differences["little memory"] < 1e-4


def test_the_random_state_of_a_remixer_on_two_devices_is_restored(differences):
    assert differences["restored"] == 0


def test_the_replicas_of_a_remixer_draw_different_masks(differences):
    assert differences["masks"] > 1e-3
