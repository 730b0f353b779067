"""Mixtures of experts in graphs of any number of rows, as exports have them."""

import numpy as np
import pytest
import tensorflow as tf

from remixer_tf.engines.tensorflow.flops import peak_bytes, variable_bytes
from remixer_tf.layers import Context, MoE, SwitchRouter
from tests.layers.mixtures import TOKENS, D, X, mixture


@pytest.mark.slow
@pytest.mark.parametrize("router", ["switch", "gshard", "hash"])
@pytest.mark.parametrize("length", [8, 1])
def test_any_number_of_rows(router, length):
    layer = mixture(router)
    specs = tf.TensorSpec([None, length, D]), tf.TensorSpec([None, length], tf.int32)
    call = tf.function(
        lambda x, tokens: layer(x, context=Context(tokens=tokens)), specs
    )
    for rows in (1, 3):
        x, tokens = X[:rows, :length], TOKENS[:rows, :length]
        expected = layer(x, context=Context(tokens=tokens))
        np.testing.assert_allclose(call(x, tokens), expected, atol=1e-5)


def test_evaluation_copies_no_weights():
    """32 experts and 512 tokens: tensors of less than a third of the weights' bytes."""
    layer = MoE(32, 256, SwitchRouter)
    layer.build((None, None, 128))
    call = tf.function(
        lambda x: layer(x, context=Context()), [tf.TensorSpec([4, 128, 128])]
    )
    weights = variable_bytes(layer.wi) + variable_bytes([layer.wo])
    assert peak_bytes(call.get_concrete_function()) < 0.3 * weights
