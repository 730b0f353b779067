"""Metrics from sums."""

import numpy as np
import pytest
from keras import ops

from remixer_tf.objectives import losses, summaries


def as_floats(summary):
    return {key: float(value) for key, value in summary.items()}


def test_values():
    sums = {"loss": 6.0, "z_loss": 0.3, "correct": 2, "weight": 3, "other": 1.5}
    summary = as_floats(summaries.summarize(sums))
    expected = {"loss": 2.0, "z_loss": 0.1, "perplexity": np.exp(2), "other": 0.5}
    assert summary == pytest.approx({**expected, "token_accuracy": 2 / 3}, rel=1e-6)
    summary = as_floats(summaries.summarize(sums, "images"))
    assert summary == pytest.approx({**expected, "image_accuracy": 2 / 3}, rel=1e-6)


@pytest.mark.slow_on_jax
def test_added_sums_weight_every_token_alike():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(4, 3, 5)).astype("float32")
    targets = rng.integers(0, 5, (4, 3))
    weights = np.array([[1, 1, 1], [1, 0, 0], [0, 0, 0], [1, 1, 0]])
    whole = losses.cross_entropy(logits, targets, weights, z_loss=0.1)
    parts = [
        losses.cross_entropy(logits[i], targets[i], weights[i], z_loss=0.1)
        for i in range(4)
    ]
    added = {key: sum(part[key] for part in parts) for key in whole}
    assert as_floats(summaries.summarize(added)) == pytest.approx(
        as_floats(summaries.summarize(whole)), rel=1e-6
    )


def test_nothing_measured_is_nan():
    sums = dict.fromkeys(("loss", "z_loss", "correct", "weight"), ops.zeros(()))
    summary = as_floats(summaries.summarize(sums))
    assert set(summary) == {"loss", "z_loss", "token_accuracy", "perplexity"}
    assert all(np.isnan(value) for value in summary.values())


@pytest.mark.parametrize(("loss", "finite"), [(88.7, True), (88.8, False)])
def test_perplexity_may_be_infinite(loss, finite):
    sums = {"loss": loss, "z_loss": 0.0, "correct": 0, "weight": 1}
    summary = as_floats(summaries.summarize(sums))
    assert np.isfinite(summary["loss"])
    assert np.isfinite(summary["perplexity"]) == finite


def test_steps_are_averaged_over_those_that_changed_the_weights():
    sums = {
        "objective": 8.0, "loss": 6.0, "weight": 2.0, "tokens": 9.0, "stop": 0.0,
        "gradient_norm": 3.0, "learning_rate": 0.6, "auxiliary/a/b": 1.5,
        "auxiliary_loss": 4.5, "steps": 5.0, "updates": 3.0, "skipped": 1.0,
    }  # fmt: skip
    assert summaries.summarize_steps(sums) == pytest.approx(
        {
            "objective": 4.0,
            "loss": 3.0,
            "perplexity": np.exp(3),
            "gradient_norm": 1.0,
            "learning_rate": 0.2,
            "auxiliary/a/b": 0.5,
            "auxiliary_loss": 1.5,
        },
        rel=1e-6,
    )
