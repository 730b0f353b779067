"""`remixer_tf.create`: models by name."""

import pytest

import remixer_tf as rt
from remixer_tf.errors import UserError

pytestmark = pytest.mark.usefixtures("clear_gin")


def test_sizes_are_the_presets_macros():
    # T5.1.1 tiny, 2 + 2 layers: all but the embedding and the logits, of 2 x 128
    # parameters an id, stays when the vocabulary grows.
    small, large = (
        rt.create("t5_1_1_tiny", vocab_size=size).count_params() for size in (64, 65)
    )
    assert large - small == 2 * 128
    model = rt.create("remixer_tiny", vocab_size=64, max_length=16)
    shapes = {tuple(v.shape) for v in model.weights}
    assert (1, 16, 16) in shapes or (16, 16) in shapes


def test_mistakes_are_one_sentence():
    with pytest.raises(UserError, match="Nearest: remixer_tiny"):
        rt.create("remixer_tny")
    with pytest.raises(UserError, match="no size 'max_lenght'. Nearest: max_length"):
        rt.create("remixer_tiny", max_lenght=3)
    with pytest.raises(UserError, match="no size 'MAX_LENGTH'"):
        rt.create("remixer_tiny", MAX_LENGTH=3)
