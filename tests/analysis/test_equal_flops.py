"""The tiny models that are compared with sMLP do the same work for a token."""

import pytest

from remixer_tf import configuration
from remixer_tf.analysis.costs import count
from remixer_tf.optimizers import Adafactor
from tests.settings import value_of

QUICK = ["smlp_tiny"]
SLOW = [
    *("gmlp_1_head_lm_tiny", "gmlp_8_heads_lm_tiny", "gmlp_tmoe_lm_tiny"),
    *("gshard_lm_tiny", "base_lm_tiny", "hash_lm_tiny", "smlp_partial_tiny"),
    *("switch_lm_tiny", "transformer_lm_tiny"),
]
LENGTH = WIDTH = 128
ROWS = 8


pytestmark = pytest.mark.usefixtures("clear_gin")


def count_model(name, *bindings):
    settings = configuration.read(
        [f"models/{name}.gin"], ["VOCAB_SIZE = 259", *bindings], complete=False
    )
    lengths = {"inputs": LENGTH, "targets": LENGTH}
    model = value_of(settings, "Run.model")
    return count(model, Adafactor, batch_size=ROWS, feature_lengths=lengths).total


@pytest.mark.slower
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(x, marks=pytest.mark.slow) for x in SLOW)]
)
def test_flops_of_a_token(name):
    """Four layers of attention and feed-forward of four times the width, and logits."""
    total = count_model(name)
    attention, feed_forward = 4 * WIDTH**2 + 2 * LENGTH * WIDTH, 8 * WIDTH**2
    expected = 2 * (4 * (attention + feed_forward) + WIDTH * 259)
    tokens = ROWS * LENGTH
    # HASH drops nothing: its blocks of rows are computed whole, some half empty.
    rel = 0.15 if name == "hash_lm_tiny" else 0.02
    assert total.matmul_flops / tokens == pytest.approx(expected, rel=rel)
    assert total.rest_flops < 0.05 * total.matmul_flops
    # Those with mixtures have as many parameters, but for the spatial experts'.
    sparse = name.startswith(("switch", "gshard", "base", "hash", "gmlp_tmoe"))
    if sparse:
        assert total.parameters / 1e6 == pytest.approx(2.67, rel=0.02)


@pytest.mark.slow
def test_spatial_experts_cost_no_flops():
    one, sixteen = (
        count_model("smlp_tiny", f"NUM_SPATIAL_EXPERTS = {number}")
        for number in (1, 16)
    )
    assert one.matmul_flops == sixteen.matmul_flops
    matrices = 2 * 15 * LENGTH * (LENGTH + 1)  # of two layers, with their biases
    assert sixteen.parameters - one.parameters == matrices
