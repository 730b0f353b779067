"""gMLP's block against NumPy."""

import functools
import math

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import Context, GatedMLP, SpatialGatingUnit, TinyAttention
from tests.compiled import compiled
from tests.layers.harness import DTYPES, assert_equals, randomize

TINY = functools.partial(TinyAttention, d_kv=4)


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def layer_norm(x, gamma, beta):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * gamma + beta


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def numpy_gated_mlp(layer, x, mask):
    """`mask`: the allowed [batch, target, source]; gate and attention obey it."""
    w = {
        v.path.split("/", 1)[1]: ops.convert_to_numpy(v)
        for v in layer.trainable_weights
    }
    n = x.shape[1]
    kernels = w["gating/mixing/mixing_matrix"]
    gate = layer.gating
    if gate.mixing.toeplitz:
        rows, columns = np.mgrid[:n, :n]
        kernels = kernels[:, layer.max_length - 1 + columns - rows]
    biases = np.atleast_2d(w["gating/mixing/spatial_bias"])
    z = gelu(x @ w["wi/kernel"] + w["wi/bias"])
    gated = z
    if gate.variant == "split":
        z, gated = np.split(z, 2, axis=-1)
    gated = layer_norm(gated, w["gating/norm/gamma"], w["gating/norm/beta"])
    groups = np.split(gated, gate.mixing.num_mixing_heads, axis=-1)
    f = np.concatenate(
        [
            (kernel[:n, :n] * mask) @ group + bias[:n, None]
            for kernel, bias, group in zip(kernels, biases, groups, strict=True)
        ],
        axis=-1,
    )
    if layer.attention:
        q, k, v = (
            x @ w[f"attention/{name}/kernel"] + w[f"attention/{name}/bias"]
            for name in ("query", "key", "value")
        )
        logits = q @ k.transpose(0, 2, 1) / math.sqrt(layer.attention.d_kv)
        read = softmax(np.where(mask, logits, -1e9)) @ v
        f = f + read @ w["attention/out/kernel"] + w["attention/out/bias"]
    s = {"additive": z + f, "linear": f}.get(gate.variant, z * f)
    return s @ w["wo/kernel"] + w["wo/bias"]


@pytest.mark.slow_on_jax
@DTYPES
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("toeplitz", [False, True])
@pytest.mark.parametrize(
    "variant, d_attention, heads",
    [
        ("split", None, 1),
        ("split", None, 5),
        ("multiplicative", None, 1),
        ("additive", None, 1),
        ("linear", None, 1),
        ("split", 4, 1),
    ],
)
def test_equations(variant, d_attention, heads, toeplitz, causal, dtype, tol):
    gate = {"variant": variant, "toeplitz": toeplitz, "num_mixing_heads": heads}
    layer = GatedMLP(
        10,
        functools.partial(SpatialGatingUnit, **gate),
        d_attention and functools.partial(TinyAttention, d_kv=d_attention),
        max_length=8,
        causal=causal,
        name="gmlp",
        dtype=dtype,
    )
    layer.build((None, None, 6))
    randomize(layer)
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    padding = np.array([[1] * 5, [1, 1, 1, 0, 0]], "int32")
    mask = np.broadcast_to(padding[:, None, :] > 0, (2, 5, 5))
    if causal:
        mask = mask & np.tri(5, dtype=bool)
    expected = numpy_gated_mlp(layer, x, mask)
    y = compiled(layer)(x, context=Context(padding_mask=ops.convert_to_tensor(padding)))
    real = padding[..., None]
    assert_equals(y * ops.cast(real, y.dtype), expected * real, tol)


def spatial_weights(**kwargs):
    layer = SpatialGatingUnit(max_length=64, name="gating", **kwargs)
    layer.build((None, None, 6))
    mixing = layer.mixing
    return (
        layer,
        ops.convert_to_numpy(mixing.mixing_matrix),
        ops.convert_to_numpy(mixing.spatial_bias),
    )


@pytest.mark.parametrize("variant", ["split", "multiplicative", "additive"])
def test_the_unit_starts_as_the_identity(variant):
    layer, w, b = spatial_weights(variant=variant)
    assert 0 < np.abs(w).max() <= 2e-6
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    expected = x[..., :3] if variant == "split" else x
    y = np.array(compiled(layer)(x, context=Context()))
    np.testing.assert_allclose(y, expected, atol=1e-4)
    assert (b == (0 if variant == "additive" else 1)).all()


@pytest.mark.parametrize("toeplitz", [False, True])
def test_the_linear_variant_starts_with_fan_in_and_without_bias(toeplitz):
    _, w, b = spatial_weights(variant="linear", toeplitz=toeplitz)
    # The truncated normal's deviation is 0.88 of the normal's.
    assert abs(w.std() / (0.88 * 64**-0.5) - 1) < 0.15
    assert (b == 0).all()


@pytest.mark.parametrize("stddev", [1e-6, 0.02, 0.2])
@pytest.mark.parametrize("bias", [0, 1])
def test_initial_values_can_be_set(stddev, bias):
    _, w, b = spatial_weights(spatial_stddev=stddev, spatial_bias_value=bias)
    assert abs(w.std() / (0.88 * stddev) - 1) < 0.1
    assert (b == bias).all()


def test_tiny_attention_starts_at_zero():
    layer = GatedMLP(8, attention=TINY, max_length=8, name="amlp")
    layer.build((None, None, 6))
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    np.testing.assert_array_equal(np.array(layer.attention(x, context=Context())), 0)
    assert layer.attention.out.kernel.shape == (4, 4)
    assert abs(ops.convert_to_numpy(layer.attention.query.kernel)).max() > 0


def test_the_tiny_attention_drops_some_of_its_weights_in_training():
    """All queries look at all four keys alike, and each key's value is its number."""
    layer = GatedMLP(
        4,
        functools.partial(SpatialGatingUnit, "linear"),
        functools.partial(TinyAttention, d_kv=4, dropout_rate=0.25),
        max_length=4,
    )
    layer.build((None, None, 4))
    layer.attention.query.kernel.assign(np.zeros((4, 4)))
    layer.gating.mixing.mixing_matrix.assign(np.zeros((1, 4, 4)))
    for projection in (layer.attention.value, layer.attention.out, layer.wo):
        projection.kernel.assign(np.eye(4))
    x = np.eye(4, dtype="float32")[None].repeat(100, 0)
    train = compiled(functools.partial(layer, training=True), layer)
    y = np.array(train(x, context=Context()))
    assert set(np.unique(y.round(4))) == {0, np.float32(1 / 3).round(4)}
    assert 0.15 < (y == 0).mean() < 0.35
    np.testing.assert_allclose(compiled(layer)(x, context=Context()), 0.25, atol=1e-6)


def test_tiny_attention_leaves_the_position_bias_of_others_alone():
    layer = GatedMLP(8, attention=TINY, max_length=8, name="amlp")
    layer.build((None, None, 6))
    randomize(layer)
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    bias = np.random.default_rng(1).normal(size=(1, 3, 5, 5)).astype("float32")
    np.testing.assert_array_equal(
        np.array(compiled(layer)(x, context=Context(position_bias=bias))),
        np.array(compiled(layer)(x, context=Context())),
    )


def test_wrong_arguments():
    with pytest.raises(ValueError, match="variant='halve'"):
        SpatialGatingUnit(variant="halve")
    for name in ("spatial_stddev", "spatial_bias_value"):
        with pytest.raises(ValueError, match=f"number.*{name}=True"):
            SpatialGatingUnit(**{name: True})
    with pytest.raises(ValueError, match="7 channels"):
        GatedMLP(7, max_length=8).build((None, None, 6))
