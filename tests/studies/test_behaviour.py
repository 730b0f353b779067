"""A claim of the gMLP paper; `studies.behaviour` has the others."""

import pytest

from studies.behaviour import losses_from


@pytest.mark.slower
def test_gmlp_learns_faster_from_spatial_weights_near_zero():
    """gMLP section 3.1, with b = 1: the loss after 150 steps."""
    near_zero, far = (1e-6, 1.0), (0.2, 1.0)
    losses = losses_from([near_zero, far], seeds=[0])
    assert 1.2 * losses[near_zero][0] < losses[far][0]
