"""What identifies a result changes with what can change it, and with nothing else."""

import functools

import gin
import numpy as np
import pytest
import seqio

from remixer_tf import configuration
from remixer_tf.data.masked_lm import MaskedLMFeatureConverter
from remixer_tf.evaluation.settings import describe, hash_model, hash_weights
from tests.data.toy_tasks import VOCABULARY, toy_task
from tests.evaluation.shift import DEV, decoded, shift_decode, shift_engine
from tests.models.tiny import tiny_encoder


class Search:
    def __init__(self, width):
        self.width = width


def make(width):
    def search(model, batch, max_length, penalty=0.6):
        return width, penalty

    return search


def test_equal_descriptions_mean_equal_behaviour():
    values = [
        None,
        1,
        "1",
        {"a": 1},
        shift_decode,
        functools.partial(shift_decode, by=1),
        functools.partial(shift_decode, by=2),
        make(1),
        make(2),
        Search(1),
        Search(2),
        Search,
        np.arange(3),
        np.arange(4),
        seqio.EncDecFeatureConverter,
        MaskedLMFeatureConverter,
    ]
    texts = [repr(describe(value)) for value in values]
    assert len(set(texts)) == len(values)
    assert not any(" at 0x" in text for text in texts)
    again = functools.partial(shift_decode, by=1)
    assert describe(again) == describe(values[5])
    assert describe(make(1)) == describe(values[7])


gin.external_configurable(Search, "Search", module="test_settings")
USER_DECODE = gin.external_configurable(
    shift_decode, "user_decode", module="test_settings"
)


@pytest.fixture
def decode_fn():
    """A user's function that gin configures."""
    configuration.register_configurables()
    gin.clear_config()
    yield USER_DECODE
    gin.clear_config()


def test_gin_bindings_are_told(decode_fn):
    described = [describe(decode_fn)]
    for binding in (
        "user_decode.by = 1",
        "user_decode.by = %BY\nBY = 1",
        "BY = 2",
        "a/user_decode.by = 3",  # what reaches @a/user_decode
        "user_decode.by = @Search()\nSearch.width = 1",
        "Search.width = 2",
    ):
        gin.parse_config(binding)
        described.append(describe(decode_fn))
    assert len(set(map(repr, described))) == len(described)
    # What concerns another function, or says what the signature says, changes nothing.
    gin.parse_config("greedy_decode.eos_id = 2")
    assert describe(decode_fn) == described[-1]
    gin.clear_config()
    gin.parse_config("user_decode.by = 0")
    assert describe(decode_fn) == described[0]


def test_a_binding_of_the_decoding_function_changes_the_score(decode_fn, tmp_path):
    def score():
        results = decoded(decode_fn=decode_fn).run(str(tmp_path), shift_engine(), 3)
        return results["toy"]["dev"]["metrics"]["em"]

    assert score() == 0.6
    gin.parse_config("user_decode.by = -1")
    assert score() == 0.4


def test_settings_of_an_evaluation():
    part = ("toy", "dev")
    kwargs = [
        {},
        {"max_examples": 2},
        {"max_decode_length": 9},
        {"feature_lengths": {"inputs": 7, "targets": 12}},
        {"vocabulary": seqio.ByteVocabulary(extra_ids=3)},
        {"feature_converter": seqio.PrefixLMFeatureConverter},
        {"decode_fn": functools.partial(shift_decode, by=1)},
        {"task": toy_task({"dev": DEV[1:]})},
        {"task": toy_task({"dev": DEV}, metric_fns=[])},
    ]
    settings = [repr(decoded(**k).settings(part)) for k in kwargs]
    assert len(set(settings)) == len(settings)
    same = {"vocabulary": seqio.ByteVocabulary(), "batch_size": 3, "period": 7}
    assert decoded(**same).settings(part) == decoded().settings(part)
    assert VOCABULARY.extra_ids == 0


def test_hash_of_a_model_and_of_its_weights():
    one, two = tiny_encoder("gmlp"), tiny_encoder("gmlp")
    assert hash_model(one) == hash_model(two)
    assert hash_weights(one) != hash_weights(two)
    two.set_weights(one.get_weights())
    assert hash_weights(one) == hash_weights(two)
    two.mask_padding = not one.mask_padding
    others = [two, tiny_encoder("bert"), tiny_encoder("amlp")]
    assert len({hash_model(model) for model in [one, *others]}) == 4
