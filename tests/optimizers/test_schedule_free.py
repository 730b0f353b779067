"""Schedule-free AdamW, compared with the equations of Defazio et al. (2024)."""

import keras
import numpy as np
import pytest

from remixer_tf.optimizers import ScheduleFreeAdamW, WarmupConstant


def reference(y, gradients, rate, warmup, decay, beta_1=0.9, beta_2=0.999):
    """Yields (y, x) after each step, in float64."""
    z = x = y.astype("float64")
    v = squares = 0.0
    for t, gradient in enumerate(gradients.astype("float64"), 1):
        r = rate * min(1, t / warmup) if warmup else rate
        squares += r**2
        v = beta_2 * v + (1 - beta_2) * gradient**2
        z = z - r * gradient / (np.sqrt(v / (1 - beta_2**t)) + 1e-8) - r * decay * y
        x = (1 - r**2 / squares) * x + r**2 / squares * z
        y = (1 - beta_1) * z + beta_1 * x
        yield y, x


@pytest.mark.parametrize("warmup, decay", [(0, 0.0), (3, 0.25)])
def test_weights_and_their_averages(warmup, decay):
    rng = np.random.default_rng(0)
    variable = keras.Variable(np.zeros(5, "float32"), name="w")
    optimizer = ScheduleFreeAdamW(0.1, warmup_steps=warmup, weight_decay=decay or None)
    optimizer.build([variable])
    start = rng.normal(size=5).astype("float32")
    variable.assign(start)  # As from a checkpoint, after the optimizer was built.
    gradients = rng.normal(size=(6, 5)).astype("float32")
    (average,) = optimizer._model_variables_moving_average
    expected = reference(start, gradients, 0.1, warmup, decay)
    for gradient, pair in zip(gradients, expected, strict=True):
        optimizer.apply([keras.ops.convert_to_tensor(gradient)], [variable])
        for found, value in zip((variable, average), pair, strict=True):
            found = keras.ops.convert_to_numpy(found)
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-6)
    assert average.path.endswith("/w_average")


def test_a_copy_has_the_same_settings():
    optimizer = ScheduleFreeAdamW(0.1, beta_1=0.8, warmup_steps=7, weight_decay=0.5)
    copy = ScheduleFreeAdamW.from_config(optimizer.get_config())
    assert copy.get_config() == optimizer.get_config()
    assert (copy.warmup_steps, copy.use_ema) == (7, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": -1}, "learning_rate must be >= 0"),
        ({"beta_1": "a"}, r"beta_1 must be in \[0, 1\]. Received: beta_1='a'"),
        ({"beta_2": 1.0}, r"beta_2 must be in \[0, 1\)"),
        ({"epsilon": 0.0}, "epsilon must be > 0"),
        ({"warmup_steps": 1.5}, "warmup_steps must be an integer of at least 0"),
        ({"weight_decay": "a"}, "weight_decay must be a number >= 0"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        ScheduleFreeAdamW(**arguments)


def test_a_schedule_is_refused():
    with pytest.raises(ValueError, match="warmup_steps in place of a schedule"):
        ScheduleFreeAdamW(WarmupConstant(0.1, warmup_steps=2))
