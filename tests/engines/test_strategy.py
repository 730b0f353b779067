"""One device and two give the same numbers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from remixer_tf.engines.tensorflow.strategy import get_strategy
from tests.made_once import run_module
from tests.training import toy

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return run_module("tests.engines.mirrored_worker", tmp_path_factory)


@pytest.mark.parametrize(
    ("optimizer", "jit"), [("adafactor 1", True), ("adamw 4", False)]
)
def test_two_replicas_equal_one_device(runs, optimizer, jit):
    one, two = runs[f"single {optimizer} False"], runs[f"mirrored {optimizer} {jit}"]
    assert (one["replicas"], two["replicas"]) == (1, 2)
    for call, expected in zip(two["calls"], one["calls"], strict=True):
        for name, value in expected.items():
            np.testing.assert_allclose(call[name], value, rtol=1e-5, err_msg=name)
    for replicas, (expected,) in zip(two["weights"], one["weights"], strict=True):
        np.testing.assert_array_equal(*replicas)
        np.testing.assert_allclose(replicas[0], expected, atol=1e-5)


def test_two_replicas_scale_the_loss_of_float16_as_one(runs):
    one, two = (runs[f"overflowed {name}"] for name in ("single", "mirrored"))
    counts = ("steps", "updates", "skipped", "overflowed")
    assert [two["sums"][name] for name in counts] == [3, 2, 0, 1]
    assert one["scale"] == two["scale"] == [2.0**14, 1]
    for replicas, (expected,) in zip(two["weights"], one["weights"], strict=True):
        np.testing.assert_array_equal(*replicas)
        np.testing.assert_allclose(replicas[0], expected, atol=2e-3)


def test_replicas_draw_different_dropout_masks_from_one_state(runs):
    (one, two), (three, four) = runs["dropout"]["draws"]
    masks = {tuple(mask) for mask in (one, two, three, four)}
    assert len(masks) == 4
    assert runs["dropout"]["states"][0] == runs["dropout"]["states"][1]


def test_gradients_are_reduced_once(runs):
    weights, reduced = runs["reductions"]["weights"], runs["reductions"]["reduced"]
    scalars = [shape for shape in reduced if not shape]
    assert scalars, "the weight of the batch is reduced as well"
    for shape in weights:
        assert reduced.count(shape) == weights.count(shape), (shape, reduced)


def test_each_replica_gets_its_rows_alone(runs):
    """Half of 8 rows, with what else a step takes of one axis or more."""
    inputs = [shape for shape in runs["reductions"]["inputs"] if len(shape) >= 3]
    assert {shape[1] for shape in inputs} == {4}
    images = runs["images"]
    assert len({device for device in images["devices"]}) == 2
    one, two = images["parts"]
    for name, rows in images["whole"].items():
        assert one[name] + two[name] == rows and len(one[name]) == 3


@pytest.mark.parametrize("run", ["single 1", "mirrored 2"])
def test_auxiliary_losses_count_once(runs, run):
    keras.utils.set_random_seed(0)
    model = toy.ReportingModel()
    model.build()
    (batch,) = toy.make_batches(1)
    weights = batch["decoder_loss_weights"]
    with tf.GradientTape() as tape:
        logits = model({k: tf.constant(v) for k, v in batch.items()})
        loss = tf.reduce_sum(
            weights
            * tf.nn.sparse_softmax_cross_entropy_with_logits(
                batch["decoder_target_tokens"], logits
            )
        ) / tf.reduce_sum(tf.cast(weights, tf.float32))
        losses = {
            "auxiliary/toy/logits/spread": tf.reduce_mean(logits**2),
            "auxiliary/add_loss": 0.5 * tf.reduce_mean(logits[..., 0] ** 2),
            "auxiliary/toy/logits/kernel/regularizer": 0.02
            * tf.reduce_sum(model.logits.kernel.value**2),
        }
        spread, *others = losses.values()
        auxiliary = 0.3 * spread + tf.add_n(others)
        objective = loss + auxiliary
    variables = [v.value for v in model.trainable_variables]
    gradients = map(tf.convert_to_tensor, tape.gradient(objective, variables))
    found = runs["auxiliary"][run]
    expected = losses | {"loss": loss, "auxiliary_loss": auxiliary}
    for name, value in expected.items():
        assert found["values"][name] == pytest.approx(float(value), rel=1e-5), name
    for replicas, variable, gradient in zip(
        found["weights"], variables, gradients, strict=True
    ):
        for weight in replicas:
            np.testing.assert_allclose(weight, variable - gradient, atol=1e-6)


@pytest.mark.parametrize("run", ["single 1", "mirrored 2"])
def test_statistics_are_means_over_replicas_and_micro_batches(runs, run):
    expected = toy.statistics(toy.make_batches(1))
    assert len(expected) == 2
    for name, value in expected.items():
        np.testing.assert_allclose(runs["auxiliary"][run]["values"][name], value, 1e-6)


def test_replicas_of_a_train_step_draw_different_masks(runs):
    assert runs["variance of masks"] > 0.01


def test_evaluation_shares_a_batch_among_replicas(runs):
    one, two = runs["evaluated single False"], runs["evaluated mirrored True"]
    np.testing.assert_allclose(two["logits"], one["logits"], atol=1e-6)
    assert (len(one["sum"]), len(two["sum"])) == (1, 2)
    assert sum(two["sum"]) == pytest.approx(sum(one["sum"]), rel=1e-4)
    assert one["weights"] == two["weights"]


def test_replicas_share_the_rows_of_answers_and_scores(runs):
    """Three rows of texts are filled up to four."""
    one, two = runs["answered single"], runs["answered mirrored"]
    assert len(set(one["texts"])) == 3 and two["texts"] == one["texts"]
    for name in ("scores", "pairs"):
        assert two[name] == pytest.approx(one[name], abs=1e-4)


def test_batch_that_does_not_divide_names_both_numbers(runs):
    assert "batch of 3 examples" in runs["indivisible"]
    assert "2 replicas" in runs["indivisible"]


def test_unknown_strategy_names_the_known():
    with pytest.raises(
        ValueError, match="'magic'.*'single', 'mirrored', 'multi_worker'"
    ):
        get_strategy("magic")
