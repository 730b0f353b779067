"""Evaluation's graphs: one for batches of all sizes, and inference's."""

import numpy as np
import pytest
import tensorflow as tf

from remixer_tf.decoding import ended_rows, greedy_decode
from remixer_tf.decoding.search import HALVINGS
from remixer_tf.engines.engine import fill_rows
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


@pytest.mark.slower
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


@pytest.mark.slow
def test_rows_leave_when_they_have_waited_for_long(monkeypatch, wants_programs):
    monkeypatch.setattr(ended_rows, "WORTH", 1)
    model, traced = make_model("float32"), []

    def decode(batch):
        traced.append(HALVINGS in batch)
        return greedy_decode(model, batch, 6, eos_id=-1)

    engine = TensorFlowEngine()
    engine.model = model
    call = engine.compile(decode, any_rows=True, xla="answers")
    tokens = batch_of(5)["encoder_input_tokens"]
    longest = tf.constant([2, 6, 1, 4, 1])
    batch = {"encoder_input_tokens": tokens, "max_length": longest}
    first, then = call(batch), call(batch)
    assert traced == [False, True]
    np.testing.assert_array_equal(first.tokens, then.tokens)
    np.testing.assert_allclose(first.scores, then.scores, atol=1e-5)


@pytest.mark.parametrize(
    ("rows", "replicas", "filled"),
    [(1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 1, 4), (5, 1, 6), (7, 1, 8), (9, 1, 12),
     (13, 1, 16), (33, 1, 48), (49, 1, 64), (65, 1, 96), (2, 2, 2), (9, 2, 12),
     (10, 2, 12)],
)  # fmt: skip
def test_few_programs_serve_all_numbers_of_rows(rows, replicas, filled):
    batch = {"ids": np.arange(2 * rows).reshape(rows, 2), "weights": np.ones(rows)}
    found = fill_rows(batch, replicas)
    assert found["ids"].shape == (filled, 2) and found["weights"].shape == (filled,)
    np.testing.assert_array_equal(found["ids"][:rows], batch["ids"])
    assert (found["ids"][rows:] == batch["ids"][-1]).all()
    found = fill_rows(batch, replicas, few=False)
    assert len(found["weights"]) == -(-rows // replicas) * replicas


def checked(batch):
    """An assertion that fails, of which XLA knows nothing."""
    with tf.control_dependencies(
        [tf.debugging.Assert(tf.reduce_any(batch["x"] > 9), ["no"])]
    ):
        return 2 * batch["x"]


def of_strings(batch):
    """What XLA cannot compile."""
    lengths = tf.strings.length(tf.strings.as_string(batch["x"]))
    with tf.control_dependencies(
        [tf.debugging.Assert(tf.reduce_all(batch["x"] < 9), ["no"])]
    ):
        return lengths


@pytest.fixture
def wants_programs(monkeypatch):
    monkeypatch.delenv("REMIXER_TF_CACHE")


def test_xla_compiles_answers_unless_somebody_says_no(monkeypatch, wants_programs):
    ones = {"x": tf.ones([3])}
    for engine in (TensorFlowEngine(), TensorFlowEngine(jit_compile=True)):
        assert (
            engine.compile(checked, any_rows=True, xla="answers")(ones).tolist()
            == [2] * 3
        )
    monkeypatch.setenv("REMIXER_TF_CACHE", "")
    engines = [TensorFlowEngine()]
    monkeypatch.delenv("REMIXER_TF_CACHE")
    for engine in (*engines, TensorFlowEngine(jit_compile=False)):
        with pytest.raises(tf.errors.InvalidArgumentError):
            engine.compile(checked, any_rows=True, xla="answers")(ones)
    with pytest.raises(tf.errors.InvalidArgumentError):  # no answers
        TensorFlowEngine().compile(checked, any_rows=True)(ones)


def test_what_xla_cannot_compile_runs_without_it(wants_programs, capsys):
    call = TensorFlowEngine().compile(of_strings, any_rows=True, xla="answers")
    with pytest.raises(tf.errors.InvalidArgumentError, match="assertion failed"):
        call({"x": tf.constant([9])})
    assert not capsys.readouterr().err
    assert call({"x": tf.constant([1, -7, 3])}).tolist() == [1, 2, 1]
    (line,) = capsys.readouterr().err.splitlines()
    assert "XLA cannot compile" in line
    assert call({"x": tf.constant([5])}).tolist() == [1]
    assert not capsys.readouterr().err
