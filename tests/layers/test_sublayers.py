"""Every sublayer under the harness, in each of its variants."""

import pytest

from tests.compiled import slow_on_jax
from tests.layers.harness import run_sublayer_test
from tests.layers.sublayers import ONE_OF_EACH_CLASS, SUBLAYERS


@pytest.mark.parametrize("name", slow_on_jax(SUBLAYERS, but=ONE_OF_EACH_CLASS))
def test_sublayer(name):
    factory, rules = SUBLAYERS[name]
    run_sublayer_test(factory, **rules)
