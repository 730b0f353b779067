"""Encoder-decoders: shapes, dtypes, padding, packing, initial values."""

import functools
import json
import pathlib

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import RMSNorm, Sublayer
from remixer_tf.models import Block, TransformerStack
from tests.compiled import compiled
from tests.models.tiny import (
    EACH_KIND,
    OTHER_KINDS,
    PACKING_KINDS,
    VOCAB_SIZE,
    check_rows_stand_alone,
    tiny_batch,
    tiny_model,
)

SNAPSHOTS = pathlib.Path(__file__).parents[1] / "testdata" / "parameter_shapes"


@pytest.mark.parametrize("kind", EACH_KIND)
def test_parameter_shapes_are_those_of_the_snapshot(kind):
    """Names and shapes are what checkpoints hold: a change needs a CHANGELOG line."""
    model = tiny_model(kind, dropout_rate=0.1)
    shapes = {v.path: list(v.shape) for v in model.variables}
    assert len(shapes) == len(model.variables), "variable paths are not unique"
    assert shapes == json.loads((SNAPSHOTS / f"{kind}.json").read_text())


@pytest.mark.parametrize("kind", EACH_KIND)
def test_logits(kind):
    logits = check_rows_stand_alone(tiny_model(kind), tiny_batch())
    assert logits.shape == (3, 7, VOCAB_SIZE) and logits.dtype == np.float32
    assert np.abs(logits[0] - logits[1]).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind", EACH_KIND)
def test_mixed_bfloat16_keeps_variables_and_logits_in_float32(kind):
    batch = tiny_batch()
    reference = tiny_model(kind)
    model = tiny_model(kind, dtype="mixed_bfloat16")
    model.set_weights(reference.get_weights())
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    logits = compiled(model)(batch)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    expected = np.array(compiled(reference)(batch))
    error = np.array(logits) - expected
    assert np.sqrt((error**2).mean() / (expected**2).mean()) < 0.05
    # Not just rounded to bfloat16 and widened again.
    values = np.array(logits).ravel()
    rounded = np.array(ops.cast(ops.cast(values, "bfloat16"), "float32"))
    assert (values != rounded).mean() > 0.9


@pytest.mark.parametrize("kind", EACH_KIND)
def test_padding_does_not_matter(kind):
    model = compiled(tiny_model(kind))
    batch = tiny_batch()
    padded = {k: np.pad(v, [(0, 0), (0, 4)]) for k, v in batch.items()}
    np.testing.assert_allclose(
        np.array(model(padded))[:, :7], np.array(model(batch)), atol=2e-5
    )


@pytest.mark.parametrize("kind", PACKING_KINDS)
def test_packed_examples_give_what_they_give_alone(kind):
    model = compiled(tiny_model(kind))
    a, b = tiny_batch(2, 5, 4, seed=1), tiny_batch(2, 6, 3, seed=2)
    packed = {}
    for side in ("encoder", "decoder"):
        key = f"{side}_input_tokens"
        lengths = a[key].shape[1], b[key].shape[1]
        # One more token of padding; row 1 of both examples ends in padding anyway.
        packed[key] = np.pad(np.concatenate([a[key], b[key]], 1), [(0, 0), (0, 1)])
        segments = np.array([1] * lengths[0] + [2] * lengths[1] + [0], "int32")
        positions = np.array([*range(lengths[0]), *range(lengths[1]), 0], "int32")
        packed[f"{side}_segment_ids"] = np.stack([segments] * 2)
        packed[f"{side}_positions"] = np.stack([positions] * 2)
    logits = np.array(model(packed))
    np.testing.assert_allclose(logits[:, :4], np.array(model(a)), atol=2e-5)
    np.testing.assert_allclose(logits[:, 4:7], np.array(model(b)), atol=2e-5)


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_packed_examples_are_refused_by_the_others(kind):
    batch = tiny_batch()
    for side in ("encoder", "decoder"):
        tokens = batch[f"{side}_input_tokens"]
        batch[f"{side}_segment_ids"] = (tokens > 0).astype("int32")
    with pytest.raises(ValueError, match="packing off"):
        tiny_model(kind)(batch)


def test_tied_logits_are_the_scaled_embedding():
    model = tiny_model("t5_1_1", tied_logits=True)
    assert not [v for v in model.variables if "logits" in v.path]
    table = ops.convert_to_numpy(model.token_embedding.embeddings)
    x = np.random.default_rng(0).normal(size=(2, 3, 8)).astype("float32")
    np.testing.assert_allclose(
        np.array(model._compute_logits(x)), x * 8**-0.5 @ table.T, atol=1e-5
    )


def test_tied_logits_read_the_table_in_float32():
    model = tiny_model("t5_1_1", tied_logits=True, dtype="mixed_bfloat16")
    table = ops.convert_to_numpy(model.token_embedding.embeddings)
    # Inside the model's own call, where weights are cast to its compute dtype.
    model.call = lambda x, training=False: model._compute_logits(x)
    logits = np.array(model(np.ones((1, 1, 8), "float32")))[0, 0]
    np.testing.assert_allclose(logits, 8**-0.5 * table.sum(axis=1), atol=1e-5)


def test_dropout_is_active_in_training_only():
    model = tiny_model("t5_1_1", dropout_rate=0.3)
    batch = tiny_batch()
    evaluate = compiled(model)
    train = compiled(functools.partial(model, training=True), model)
    evaluated = np.array(evaluate(batch))
    np.testing.assert_array_equal(np.array(evaluate(batch)), evaluated)
    trained = np.array(train(batch))
    assert (trained != evaluated).any()
    assert (trained != np.array(train(batch))).any()


def test_embedding_starts_at_unit_variance_and_logits_at_fan_in():
    model = tiny_model("t5_1_1")
    assert abs(ops.convert_to_numpy(model.token_embedding.embeddings).std() - 1) < 0.15
    assert abs(ops.convert_to_numpy(model.logits.kernel).std() * 8**0.5 - 1) < 0.15


class _Shrinks(Sublayer):
    def call(self, x, context, training=False):
        return x[:, 1:]


def test_a_sublayer_that_changes_the_shape_raises():
    block = Block(_Shrinks(name="shrinks"), RMSNorm(name="norm"), name="block")
    with pytest.raises(ValueError, match=r"'.*shrinks': \(2, 3, 8\) for \(2, 4, 8\)"):
        block(np.ones((2, 4, 8), "float32"), context=None)


def test_stack_is_its_blocks_then_a_norm():
    class Identity(Sublayer):
        def call(self, x, context, training=False):
            return x

    stack = TransformerStack({"identity": Identity}, num_layers=2, name="stack")
    x = np.random.default_rng(0).normal(size=(1, 3, 4)).astype("float32")

    def norm(x):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)

    expected = x + norm(x)
    expected = norm(expected + norm(expected))
    np.testing.assert_allclose(np.array(stack(x, context=None)[0]), expected, atol=1e-5)


def test_batch_spec_is_what_the_model_reads():
    model = tiny_model("remixer")
    spec = model.batch_spec(3, {"inputs": 10, "targets": 7})
    batch = tiny_batch(3, encoder_length=10, decoder_length=7)
    assert spec.keys() == batch.keys()
    for key, value in batch.items():
        assert spec[key].shape == value.shape
        assert spec[key].dtype == str(value.dtype) == "int32"
