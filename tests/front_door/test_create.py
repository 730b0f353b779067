"""`remixer_tf.create`: models by name."""

import keras
import numpy as np
import pytest

import remixer_tf as rt
from remixer_tf import configuration
from remixer_tf.errors import UserError
from tests.settings import value_of

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
    with pytest.raises(UserError, match=r"no preset 'remixer_s\*'"):
        rt.create("remixer_s*")
    with pytest.raises(UserError, match="with num_encoder_layers=0: num_layers must"):
        rt.create("remixer_tiny", num_encoder_layers=0)
    for value in (float("nan"), object(), np.ones(2)):
        with pytest.raises(UserError, match="d_model must be a number, a str, or a li"):
            rt.create("t5_1_1_tiny", d_model=value)


def test_what_needs_more_memory_than_there_is_is_refused():
    # 4 bytes for each number of the tables of embeddings and logits, 16 x 10**9 each,
    # are 0.128 TB; the layers have more.
    message = (
        r"parameters, which need [0-9,]+\.[0-9] GB of memory\. There are [0-9,.]+ GB"
    )
    with pytest.raises(UserError, match=message) as error:
        rt.create("remixer_tiny", d_model=10**9, vocab_size=16)
    assert "\n" not in str(error.value)


def test_counting_memory_changes_no_weights():
    keras.utils.set_random_seed(3)
    first = rt.create("t5_1_1_tiny", vocab_size=np.int64(16))
    keras.utils.set_random_seed(3)
    settings = configuration.read(
        ["models/t5_1_1_tiny.gin"], ["VOCAB_SIZE = 16"], (), False
    )
    second = value_of(settings, "Run.model")()
    second.build()
    for one, two in zip(first.weights, second.weights, strict=True):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(two))


def test_a_model_has_the_name_of_the_first():
    keras.utils.clear_session(free_memory=False)
    assert rt.create("t5_1_1_tiny", vocab_size=16).name == "encoder_decoder"
