"""`TokenGraph`, with its weights stored whole and in half the size."""

import numpy as np
import pytest
import tensorflow as tf

from remixer_tf.decoding import greedy_decode
from remixer_tf.serving.stored_weights import StoredWeights
from remixer_tf.serving.token_graph import TokenGraph
from tests.layers.harness import randomize
from tests.models.tiny import VOCAB_SIZE, tiny_model

INPUTS = np.random.default_rng(0).integers(2, VOCAB_SIZE, (3, 8)).astype("int32")


@pytest.fixture(scope="module")
def model():
    model = tiny_model("t5_1_1")
    randomize(model)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weights", "jit_compile"),
    [
        pytest.param("float32", False, marks=pytest.mark.slower),
        ("bfloat16", True),
        pytest.param("bfloat16", False, marks=pytest.mark.slower),
    ],
)
def test_a_saved_graph_answers_as_the_search_does(
    model, weights, jit_compile, tmp_path
):
    graph = TokenGraph(
        model,
        input_length=8,
        max_length=5,
        weights=weights,
        jit_compile=jit_compile,
    )
    signatures = {"any": graph.function(), "one": graph.function(batch_size=1)}
    tf.saved_model.save(graph, str(tmp_path), signatures)
    loaded = tf.saved_model.load(str(tmp_path)).signatures
    library = loaded["any"].graph.as_graph_def().library.function
    compiled = [function.attr["_XlaMustCompile"].b for function in library]
    assert any(compiled) == jit_compile
    original = [weight.numpy() for weight in model.weights]
    for weight in model.weights:
        stored = tf.cast(tf.cast(weight.value, weights), "float32")
        weight.assign(stored)
    expected = greedy_decode(model, {"encoder_input_tokens": INPUTS}, 5)
    for weight, value in zip(model.weights, original, strict=True):
        weight.assign(value)
    whole = loaded["any"](inputs=tf.constant(INPUTS))
    first = loaded["one"](inputs=tf.constant(INPUTS[:1]))
    assert whole["outputs"].numpy().tolist() == np.array(expected.tokens).tolist()
    assert first["outputs"].numpy().tolist() == np.array(expected.tokens)[:1].tolist()
    np.testing.assert_allclose(whole["scores"], expected.scores, atol=1e-4)


def test_half_weights_are_cast_where_they_are_read(model):
    half = StoredWeights(model, "bfloat16")
    assert half.num_bytes * 2 == StoredWeights(model).num_bytes
    weight = model.weights[0]
    before = weight.numpy()
    with half.reading():
        read = weight.value.numpy()
    assert (read == tf.cast(tf.cast(before, "bfloat16"), "float32").numpy()).all()
    assert not (read == before).all() and (weight.numpy() == before).all()


def test_what_a_type_cannot_hold_is_an_error(model):
    with pytest.raises(ValueError, match="one of float32, .*weights='int4'.*int8"):
        StoredWeights(model, "int4")
    weight = model.weights[0]
    before = weight.numpy()
    weight.assign(before + 70_000)
    try:
        with pytest.raises(ValueError, match="float16 cannot hold .*emb.*7e\\+04"):
            StoredWeights(model, "float16")
    finally:
        weight.assign(before)
