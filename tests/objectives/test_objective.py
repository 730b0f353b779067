"""Losses and statistics that layers report, by name."""

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.errors import UserError
from remixer_tf.layers import sow
from remixer_tf.objectives.losses import CrossEntropy
from remixer_tf.objectives.objective import (
    Objective,
    reports,
    unused_variables,
    weighted_sum,
)

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


class Router(keras.layers.Layer):
    def call(self, x):
        sow(self, "losses", "balance", ops.mean(x))
        sow(self, "losses", "z", lambda: ops.sum(ops.square(x)))
        sow(self, "statistics", "mean", ops.mean(x))
        sow(self, "statistics", "means", ops.mean(x, axis=0))
        self.add_loss(3.0 * ops.ones(()))
        return x


class Model(keras.Model):
    def __init__(self):
        super().__init__(name="model")
        self.routers = [Router(name=f"router_{i}") for i in range(2)]
        self.dense = keras.layers.Dense(
            2,
            kernel_regularizer="l2",
            bias_regularizer="l2",
            activity_regularizer=keras.regularizers.L1(0.5),
            name="dense",
        )

    def build(self, input_shape=None):
        self.dense.build((None, 3))
        self.built = True

    def call(self, x, training=False):
        assert training
        for router in self.routers:
            x = router(x + 1.0)
        return self.dense(router(x))  # The last one is called twice.


def call_with_reports(model, x):
    with reports(model) as (losses, statistics):
        outputs = model(x, training=True)
    return outputs, losses, statistics


@pytest.fixture
def model():
    model = Model()
    model.build()
    return model


def test_names_and_values(model):
    kernel = ops.convert_to_numpy(model.dense.kernel)
    y = (X + 2.0) @ kernel
    expected = {
        "model/router_0/balance": np.mean(X + 1),
        "model/router_0/z": np.sum((X + 1) ** 2),
        "model/router_1/balance": 2 * np.mean(X + 2),
        "model/router_1/z": 2 * np.sum((X + 2) ** 2),
        "add_loss": 3 * 3.0 + 0.5 * np.abs(y).sum() / len(y),  # Keras: a mean over rows
        "model/dense/kernel/regularizer": 0.01 * np.sum(kernel**2),
        "model/dense/bias/regularizer": 0.0,
    }
    for _ in range(2):  # A call's losses do not outlive it.
        outputs, losses, statistics = call_with_reports(model, X)
        np.testing.assert_allclose(ops.convert_to_numpy(outputs), y, atol=1e-5)
        found = {name: float(value) for name, value in losses.items()}
        assert found == pytest.approx(expected, rel=1e-5)
        assert statistics.keys() == {
            f"model/router_{i}/{name}" for i in range(2) for name in ("mean", "means")
        }
        for i in range(2):  # The mean of calls.
            mean, means = (
                statistics[f"model/router_{i}/{n}"] for n in ("mean", "means")
            )
            assert float(mean) == pytest.approx(np.mean(X) + 1 + i, rel=1e-5)
            np.testing.assert_allclose(means, X.mean(0) + 1 + i, rtol=1e-5)


def test_the_first_expression_that_matches_gives_the_weight(model):
    _, losses, _ = call_with_reports(model, X)
    weights = {"router_1/z": 0.5, "/z$": 2.0, "add_loss": 0.0, "regularizer$": 0.0}
    values = {name: float(value) for name, value in losses.items()}
    expected = (
        2 * values["model/router_0/z"]
        + 0.5 * values["model/router_1/z"]
        + values["model/router_0/balance"]
        + values["model/router_1/balance"]
    )
    assert float(weighted_sum(losses, weights)) == pytest.approx(expected, rel=1e-6)
    assert float(weighted_sum({}, {})) == 0.0


@pytest.mark.parametrize("weights", ["a", [1], {"a": "b"}, {"(": 1.0}, {1: 1.0}])
def test_weights_that_are_none(weights):
    with pytest.raises(UserError, match="dictionary of numbers by regular expression"):
        Objective(auxiliary_loss_weights=weights)


@pytest.mark.parametrize("loss", ["a", None, CrossEntropy, keras.losses.Huber()])
def test_a_loss_that_is_no_function(loss):
    with pytest.raises(UserError, match="loss_fn must be a function of outputs"):
        Objective(loss)


def test_a_loss_that_overrides_what_the_trainer_does_not_call():
    class Own(CrossEntropy):
        def __call__(self, logits, batch):
            return super().__call__(logits, batch)

    with pytest.raises(UserError, match=r"^The trainer calls Own.sums.*Override sums"):
        Objective(Own())

    class Both(Own):
        def sums(self, outputs, batch):
            return super().sums(outputs, batch)

    assert Objective(Both()).loss_fn.tokens_at_once is None


def test_an_expression_without_a_loss_names_those_that_are_there(model):
    _, losses, _ = call_with_reports(model, X)
    with pytest.raises(ValueError, match="'balnce'.*model/router_1/balance"):
        weighted_sum(losses, {"balnce": 1.0})


def test_a_statistic_of_another_rank_is_named():
    class Matrix(Model):
        def call(self, x, training=False):
            sow(self, "statistics", "matrix", x)
            return self.dense(x)

    model = Matrix()
    model.build()
    with pytest.raises(ValueError, match=r"model/matrix of shape \(4, 3\)"):
        call_with_reports(model, X)


def test_inside_a_stateless_call_of_jax():
    if keras.backend.backend() != "jax":
        pytest.skip("an engine on JAX calls the model without state")
    import jax

    model = Model()
    model.build()
    eager = call_with_reports(model, X)[1]

    @jax.jit
    def losses_of(values):
        mapping = zip(model.trainable_variables, values, strict=True)
        with keras.StatelessScope(state_mapping=mapping, collect_losses=True):
            return call_with_reports(model, X)[1]

    losses = losses_of([v.value for v in model.trainable_variables])
    for name, value in eager.items():
        assert float(losses[name]) == pytest.approx(float(value), rel=1e-5), name


def test_a_position_bias_that_nothing_reads_says_which_line_turns_it_off():
    path = "model/encoder/position_bias/rel_embedding"
    message = str(unused_variables([path]))
    assert path in message
    assert "`encoder/TransformerStack.position_bias = None`" in message
    assert "TransformerStack" not in str(unused_variables(["model/scale"]))
    message = str(unused_variables([f"model/scale_{i}" for i in range(99)]))
    assert "model/scale_4, and 94 more. Expected" in message
