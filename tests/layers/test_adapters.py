"""Adapters of one projection: Hu et al. 2021, "LoRA", Equation 3."""

import keras
import numpy as np
import pytest

from remixer_tf.layers.axes import axes_of
from remixer_tf.layers.base import dense

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2, 5, 6)).astype("float32")


def adapted(rank, units=4, **options):
    layer = dense("wi", (None, None, 6), units, "float32", axes=("d_model", "d_ff"))
    layer.enable_lora(rank, **options)
    return layer


def test_the_equation():
    layer = adapted(2, lora_alpha=6)
    a, b = RNG.normal(size=(6, 2)), RNG.normal(size=(2, 4))
    layer.lora_kernel_a.assign(a)
    layer.lora_kernel_b.assign(b)
    w = np.array(layer._kernel.numpy())
    for training in (False, True):
        y = np.array(layer(X, training=training))
        np.testing.assert_allclose(y, X @ w + 6 / 2 * (X @ a @ b), atol=2e-6)
    np.testing.assert_allclose(layer.kernel, w + 3 * a @ b, atol=1e-6)


def test_a_zero_b_changes_no_bit():
    layer = dense("wi", (None, None, 6), 4, "float32")
    before = np.array(layer(X))
    layer.enable_lora(3, dropout_rate=0.5)
    for training in (False, True):
        np.testing.assert_array_equal(np.array(layer(X, training=training)), before)


def test_dropout_is_of_the_adapters_input_in_training():
    layer = adapted(6, units=6, dropout_rate=0.25)
    layer._kernel.assign(np.zeros((6, 6)))
    for variable in (layer.lora_kernel_a, layer.lora_kernel_b):
        variable.assign(np.eye(6))
    x = np.ones((64, 8, 6), "float32")
    np.testing.assert_array_equal(np.array(layer(x)), x)
    y, other = (np.array(layer(x, training=True)) for _ in range(2))
    assert {*np.unique(y)} == {np.float32(0), np.float32(1) / np.float32(0.75)}
    assert abs(np.mean(y == 0) - 0.25) < 0.03 and np.any(y != other)


def test_paths_and_axes():
    layer = adapted(2, dropout_rate=0.1)
    paths = [v.path for v in layer.variables]
    seed = "wi/lora_dropout/seed_generator/seed_generator_state"
    assert paths == ["wi/kernel", "wi/lora_kernel_a", "wi/lora_kernel_b", seed]
    assert axes_of(layer.lora_kernel_a) == ("d_model", None)
    assert axes_of(layer.lora_kernel_b) == (None, "d_ff")
    assert [v.name for v in layer.trainable_variables] == paths[1:3] or all(
        v.name.startswith("lora_kernel") for v in layer.trainable_variables
    )


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float32"])
def test_adapters_stay_float32(policy):
    layer = dense("wi", (None, None, 6), 4, policy)
    layer.enable_lora(2)
    assert {v.dtype for v in layer.variables} == {"float32"}
    expected = keras.DTypePolicy(policy).compute_dtype
    assert keras.backend.standardize_dtype(layer(X).dtype) == expected
