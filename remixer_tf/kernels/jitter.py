"""Random factors near 1."""

import keras
from keras import ops


def reference(shape, amount, seed):
    """See `jitter`: all of them are drawn."""
    return keras.random.uniform(
        shape, 1 - amount, 1 + amount, dtype="float32", seed=seed
    )


def jitter(shape, amount, seed):
    """Uniform numbers of [1 - amount, 1 + amount], from few draws.

    The numbers of a token are independent. The other tokens of a group have the same
    numbers, moved around the interval by a random number of each token. So any two
    numbers are independent, but not all.

    Chosen for: all devices, so that a run has the same numbers on each.
    Gain: TensorFlow's generator takes half a microsecond a number under XLA on a CPU,
    five times the rest of `SwitchRouter` in training.

    `shape` is (groups, tokens, d_model), `amount` a float and `seed` a
    `keras.random.SeedGenerator`. Returns float32 of the shape.
    """
    groups, tokens, d_model = shape
    draws = keras.random.uniform((groups, tokens + d_model), dtype="float32", seed=seed)
    draws *= 2 * amount
    moved = (1 - amount) + draws[:, :tokens, None] + draws[:, None, tokens:]
    return ops.where(moved < 1 + amount, moved, moved - 2 * amount)
