"""Searches as graphs: compiled by XLA, and in a SavedModel for any batch size."""

import numpy as np
import pytest
import tensorflow as tf

from remixer_tf.decoding import AnswerLimits, Sampling, T5Rules, beam_search, sample
from tests.decoding.recurrent import Recurrent
from tests.models.tiny import tiny_batch, tiny_decoder

LIMITS = AnswerLimits(allowed=[[2], [3, 4], [3, 5, 2]])


def prompts():
    return tf.constant(tiny_batch()["encoder_input_tokens"][:, -4:])


def check(function, expected):
    for got, want in zip(function(prompts()), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


@pytest.mark.slow
def test_beams_are_compiled_by_xla():
    def search(tokens):
        batch = {"encoder_input_tokens": tokens}
        options = {"beams": 2, "n_best": 2, "limits": LIMITS}
        return beam_search(Recurrent(), batch, 5, T5Rules(), **options).answers

    check(tf.function(search, jit_compile=True), search(prompts()))


@pytest.mark.slower
def test_a_sampler_in_a_saved_model(tmp_path):
    model = tiny_decoder("gmlp")

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.int32)])
    def search(tokens):
        batch = {"encoder_input_tokens": tokens}
        options = {"sampling": Sampling(top_k=9, top_p=0.8), "limits": LIMITS}
        return sample(model, batch, 5, num_samples=3, **options).answers

    module = tf.Module()
    module.weights = [weight.value for weight in model.weights]
    module.search = search
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    check(loaded.search, search.python_function(prompts()))
