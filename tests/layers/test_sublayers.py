"""Every sublayer under the harness, in each of its variants."""

import keras
import pytest

from tests.layers.harness import run_sublayer_test
from tests.layers.sublayers import SUBLAYERS

NAMES = list(SUBLAYERS)
if keras.backend.backend() == "jax":
    # XLA compiles every operation: one variant of each class, the last.
    # test_backends_tf compares the outputs of all.
    NAMES = list({name.partition("(")[0]: name for name in NAMES}.values())


@pytest.mark.parametrize("name", NAMES)
def test_sublayer(name):
    factory, rules = SUBLAYERS[name]
    run_sublayer_test(factory, **rules)
