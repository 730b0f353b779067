"""Schedules against NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.optimizers import schedules

STEPS = np.array([0, 1, 7, 19, 20, 21, 50, 99, 100, 101, 5000, 1_000_000])


def ramp(t, warmup):
    return np.minimum(1.0, t / warmup)


CASES = [
    (
        schedules.TruncatedRsqrt(20),
        lambda t: 1 / np.sqrt(np.maximum(t, 20)),
    ),
    (
        schedules.TruncatedRsqrt(20, multiplier=0.5, step_offset=15),
        lambda t: 0.5 / np.sqrt(np.maximum(t - 15, 20)),
    ),
    (
        schedules.WarmupRsqrt(20, multiplier=3.0),
        lambda t: np.where(t < 20, 3 * t / 20**1.5, 3 / np.sqrt(np.maximum(t, 1))),
    ),
    (schedules.WarmupConstant(1e-3), lambda t: np.full(t.shape, 1e-3)),
    (schedules.WarmupConstant(0.1, 20), lambda t: 0.1 * ramp(t, 20)),
    (
        schedules.WarmupConstant(0.1, warmup_steps=20, step_offset=50),
        lambda t: 0.1 * ramp(np.maximum(t - 50, 0), 20),
    ),
    (
        schedules.WarmupLinearDecay(0.1, 100),
        lambda t: np.interp(t, [0, 100], [0.1, 0.0]),
    ),
    (
        schedules.WarmupLinearDecay(
            0.1, 100, warmup_steps=20, end_learning_rate=0.01, step_offset=7
        ),
        lambda t: np.interp(t, [7, 27, 107], [0.0, 0.1, 0.01]),
    ),
    (
        schedules.WarmupCosineDecay(0.1, 100),
        lambda t: 0.05 * (1 + np.cos(np.pi * np.minimum(t / 100, 1))),
    ),
    (
        schedules.WarmupCosineDecay(0.1, 100, warmup_steps=20, end_learning_rate=0.02),
        lambda t: np.where(
            t < 20,
            0.1 * t / 20,
            0.02 + 0.04 * (1 + np.cos(np.pi * np.minimum((t - 20) / 80, 1))),
        ),
    ),
]


@pytest.mark.parametrize(("schedule", "expected"), CASES)
def test_values_equal_numpy(schedule, expected):
    values = [ops.convert_to_numpy(schedule(int(step))) for step in STEPS]
    assert all(value.dtype == np.float32 and value.shape == () for value in values)
    np.testing.assert_allclose(values, expected(STEPS), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("schedule", "_"), CASES)
def test_config_round_trip(schedule, _):
    config = keras.optimizers.schedules.serialize(schedule)
    again = keras.optimizers.schedules.deserialize(config)
    assert type(again) is type(schedule)
    assert again.get_config() == schedule.get_config()
    for step in (0, 10, 60):
        assert float(again(step)) == float(schedule(step))


def test_cosine_equals_keras():
    ours = schedules.WarmupCosineDecay(0.1, 100, 20, end_learning_rate=0.01)
    keras_own = keras.optimizers.schedules.CosineDecay(
        0.0, decay_steps=80, alpha=0.1, warmup_target=0.1, warmup_steps=20
    )
    for step in STEPS:
        np.testing.assert_allclose(
            float(ours(int(step))), float(keras_own(int(step))), rtol=1e-5, atol=1e-8
        )


def test_an_optimizer_starts_at_step_0():
    variable = keras.Variable(np.zeros(3, "float32"))
    optimizer = keras.optimizers.SGD(schedules.WarmupConstant(1.0, warmup_steps=2))
    seen = []
    for _ in range(4):
        optimizer.apply([ops.ones(3)], [variable])
        seen.append(-float(ops.convert_to_numpy(variable)[0]))
    np.testing.assert_allclose(np.diff([0.0] + seen), [0.0, 0.5, 1.0, 1.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: schedules.TruncatedRsqrt(0),
            "warmup_steps must be an integer of at least 1",
        ),
        (
            lambda: schedules.WarmupRsqrt(1e4),
            "warmup_steps must be an integer of at least 1",
        ),
        (
            lambda: schedules.TruncatedRsqrt(multiplier=0),
            "multiplier must be a number >",
        ),
        (
            lambda: schedules.WarmupConstant("1e-3"),
            "learning_rate must be a number > 0",
        ),
        (lambda: schedules.WarmupConstant(-1.0), "learning_rate must be a number > 0"),
        (
            lambda: schedules.WarmupConstant(1.0, -1),
            "warmup_steps must be an int.* at least 0",
        ),
        (
            lambda: schedules.WarmupConstant(1.0, step_offset=-5),
            "step_offset must be an integer of at least 0. Received: step_offset=-5",
        ),
        (
            lambda: schedules.WarmupLinearDecay(1.0, 100, 100),
            "total_steps=100, warmup_steps=100. Train for longer",
        ),
        (
            lambda: schedules.WarmupCosineDecay(1.0, 9, end_learning_rate=2.0),
            "end_learning_rate must not exceed learning_rate",
        ),
        (
            lambda: schedules.WarmupLinearDecay(1.0, 9, end_learning_rate=float("nan")),
            "end_learning_rate must be a number >= 0",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
