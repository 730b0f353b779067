"""Every sublayer under the harness, in each of its variants."""

import pytest

from tests.layers.harness import run_sublayer_test
from tests.layers.sublayers import SUBLAYERS


@pytest.mark.parametrize("name", SUBLAYERS)
def test_sublayer(name):
    factory, rules = SUBLAYERS[name]
    run_sublayer_test(factory, **rules)
