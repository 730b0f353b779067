"""Searches as graphs: compiled by XLA, and in a SavedModel for any batch size."""

import numpy as np
import tensorflow as tf

from tests.decoding.searches import beam_search, sample
from tests.models.tiny import tiny_batch, tiny_decoder


def prompts():
    return tf.constant(tiny_batch()["encoder_input_tokens"][:, -4:])


def check(function, expected):
    for got, want in zip(function(prompts()), expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)


def test_beams_are_compiled_by_xla():
    model = tiny_decoder("gmlp")

    def search(tokens):
        batch = {"encoder_input_tokens": tokens}
        return beam_search(model, batch, 5, beams=2)[0][:2]

    check(tf.function(search, jit_compile=True), search(prompts()))


def test_a_sampler_in_a_saved_model(tmp_path):
    model = tiny_decoder("gmlp")

    @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.int32)])
    def search(tokens):
        batch = {"encoder_input_tokens": tokens}
        return sample(model, batch, 5, seeds=tokens[:, 0])[0][:2]

    module = tf.Module()
    module.weights = [weight.value for weight in model.weights]
    module.search = search
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    check(loaded.search, search.python_function(prompts()))
