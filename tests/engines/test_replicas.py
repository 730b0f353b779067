"""Evaluation's graphs: one for batches of all sizes, and inference's."""

import numpy as np
import pytest
import tensorflow as tf

from remixer_tf.decoding import greedy_decode
from remixer_tf.engines.tensorflow.engine import TensorFlowEngine
from tests.layers.harness import randomize
from tests.models.tiny import tiny_batch, tiny_model

ROWS = 6


def make_model(dtype):
    model = tiny_model("remixer", dtype=dtype, num_layers=1)
    randomize(model)
    return model


def batch_of(rows):
    batch = tiny_batch(batch_size=ROWS)
    return {name: tf.constant(x[:rows]) for name, x in batch.items()}


@pytest.mark.slow
def test_bfloat16_is_decoded_as_inference_does():
    """Bit by bit, scores included, with the batch that inference gets."""
    model = make_model("mixed_bfloat16")
    traced = []

    def decode(batch):
        traced.append(batch["encoder_input_tokens"].shape)
        return greedy_decode(model, batch, 6, eos_id=-1)

    evaluate = TensorFlowEngine(jit_compile=False).compile(decode, any_rows=True)
    found = evaluate(batch_of(ROWS))
    inputs = batch_of(ROWS)["encoder_input_tokens"]

    @tf.function(input_signature=[tf.TensorSpec([None, *inputs.shape[1:]], tf.int32)])
    def infer(tokens):
        return greedy_decode(model, {"encoder_input_tokens": tokens}, 6, eos_id=-1)

    expected = infer(inputs)
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_array_equal(found.scores, expected.scores)
    evaluate(batch_of(2))
    assert len(traced) == 1


@pytest.mark.slow
def test_xla_compiles_it_for_each_size():
    model = make_model("float32")

    def decode(batch):
        return greedy_decode(model, batch, 3, eos_id=-1)

    evaluate = TensorFlowEngine(jit_compile=True).compile(decode, any_rows=True)
    for rows in (ROWS, 2):
        found, expected = evaluate(batch_of(rows)), decode(batch_of(rows))
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-3)
