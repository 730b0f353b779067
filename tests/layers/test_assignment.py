"""The balanced assignment against SciPy's best one."""

import keras
import numpy as np
import pytest
from keras import ops
from scipy.optimize import linear_sum_assignment

from remixer_tf.layers.assignment import assign_balanced
from tests.compiled import slow_on_jax

TOKENS = 512
jax_is_slow = (
    pytest.mark.slow if keras.backend.backend() == "jax" else lambda test: test
)


def affinities(kind, num_experts, seed=0):
    rng = np.random.default_rng(seed)
    if kind == "clustered":  # tokens of ten kinds
        centers = rng.normal(size=(10, 64))
        x = centers[rng.integers(0, 10, TOKENS)] + 0.3 * rng.normal(size=(TOKENS, 64))
        return (x @ rng.normal(size=(64, num_experts)) / 8).astype("float32")
    a = rng.normal(size=(TOKENS, num_experts))
    if kind == "biased":  # some experts are better for all
        a += 2 * rng.normal(size=num_experts)
    return a.astype("float32")


def assign(values, mask=None):
    """Experts of `[groups, tokens, experts]`."""
    if mask is None:
        mask = np.ones(values.shape[:2], "int32")
    mask = ops.convert_to_tensor(np.array(mask, "int32"))
    values = ops.convert_to_tensor(values.astype("float32"))
    return np.array(assign_balanced(values, mask))


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("num_experts", slow_on_jax([8, 16], but=[8]))
def test_balanced_and_almost_the_best(num_experts):
    """99% of the way from a random assignment to the best, on three kinds at once."""
    kinds = ["independent", "biased", "clustered"]
    values = np.stack([affinities(kind, num_experts) for kind in kinds])
    share = TOKENS // num_experts
    for kind, a, experts in zip(kinds, values, assign(values), strict=True):
        counts = np.bincount(experts, minlength=num_experts)
        np.testing.assert_array_equal(counts, share)
        rows, columns = linear_sum_assignment(-np.repeat(a, share, axis=1))
        best = a[rows, columns // share].sum()
        random = a.mean() * TOKENS
        quality = (a[np.arange(TOKENS), experts].sum() - random) / (best - random)
        assert quality >= 0.99, (kind, quality)


def counts(values, mask):
    """How many tokens of the mask each expert has, `[groups, experts]`."""
    experts = assign(values, mask)
    return [
        np.bincount(row[np.array(real) > 0], minlength=values.shape[-1]).tolist()
        for row, real in zip(experts, mask, strict=True)
    ]


@jax_is_slow
def test_groups_and_padding():
    rng = np.random.default_rng(0)
    mask = np.ones((3, 24), "int32")
    mask[1, 12:] = 0
    mask[2] = 0
    values = rng.normal(size=(3, 24, 4)).astype("float32")
    assert counts(values, mask) == [[6] * 4, [3] * 4, [0] * 4]
    alone = assign(values[1:2, :12])
    np.testing.assert_array_equal(assign(values, mask)[1, :12], alone[0])
    values[1, 12:] *= 100  # what stands in padding changes nothing
    np.testing.assert_array_equal(assign(values, mask)[1, :12], alone[0])


@pytest.mark.slow
@jax_is_slow
def test_what_does_not_differ_is_balanced_too():
    """All affinities equal, and identical tokens."""
    values = np.stack([np.zeros((12, 4)), 1e6 * np.ones((12, 1)) * np.arange(4)])
    assert counts(values, np.ones((2, 12))) == [[3] * 4] * 2
    for number in (3, 7, 13, 100):  # whose mean is not exact
        for value in (0.1, 7.0, -1e3):
            equal = np.full((1, number, 4), value)
            (loads,) = counts(equal, np.ones((1, number)))
            assert max(loads) == -(-number // 4), (number, value, loads)


@jax_is_slow
def test_few_tokens_and_one_expert():
    values = np.random.default_rng(0).normal(size=(2, 7, 8))
    mask = np.ones((2, 7))
    mask[1, 1:] = 0
    assert list(map(max, counts(values, mask))) == [1, 1]
    assert counts(np.ones((2, 9, 1)), np.ones((2, 9))) == [[9], [9]]
    one = np.random.default_rng(0).normal(size=(5, 1, 8))
    np.testing.assert_array_equal(assign(one), one.argmax(-1))
    # Experts need not be full where tokens are no multiple of them.
    for number in (3, 7, 13):
        share = -(-number // 8)
        values = np.stack([affinities("biased", 8, i)[:number] for i in range(6)])
        best, random = 0.0, values.mean() * values[..., 0].size
        for a in values:
            rows, columns = linear_sum_assignment(-np.repeat(a, share, axis=1))
            best += a[rows, columns // share].sum()
        found = np.take_along_axis(values, assign(values)[..., None], axis=2).sum()
        assert (found - random) / (best - random) > 0.97, number
        assert max(map(max, counts(values, np.ones((6, number))))) == share


@jax_is_slow
def test_what_is_not_finite_counts_as_zero():
    values = np.random.default_rng(0).normal(size=(3, 12, 4)).astype("float32")
    values[0] = np.nan
    values[1, :3] = [np.nan, np.inf, -np.inf, 1.0]
    assert counts(values, np.ones((3, 12))) == [[3] * 4] * 3
    zeros = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    np.testing.assert_array_equal(assign(values), assign(zeros))
