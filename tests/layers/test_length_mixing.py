"""LengthMixing and the Toeplitz matrices against NumPy."""

import functools
import math
import re

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.kernels import fft_product
from remixer_tf.layers import Context, LengthMixing, create_toeplitz_matrix
from remixer_tf.layers.base import DecodeState
from remixer_tf.testing import Trial
from tests.compiled import compiled, outputs_and_gradients
from tests.layers.harness import DTYPES, assert_equals


def numpy_toeplitz(w):
    n = (w.shape[-1] + 1) // 2
    index = (n - 1) + np.arange(n)[None, :] - np.arange(n)[:, None]
    return w[..., index]


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("lead", [(), (3,)])
def test_toeplitz_listing_equals_the_definition(n, lead):
    w = np.random.default_rng(n).normal(size=(*lead, 2 * n - 1)).astype("float32")
    matrix = np.array(create_toeplitz_matrix(ops.convert_to_tensor(w)))
    np.testing.assert_array_equal(matrix, numpy_toeplitz(w))


def numpy_mixing(h, x, mask=None, causal=False, softmax=True):
    """One head, written example by example and row by row."""
    y = np.zeros_like(x)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            keys = [
                s
                for s in range(x.shape[1])
                if not (causal and s > t) and (mask is None or mask[b, s])
            ]
            weights = h[t, keys]
            if softmax:
                weights = np.exp(weights - weights.max())
                weights /= weights.sum()
            y[b, t] = weights @ x[b, keys]
    return y


def make(**kwargs):
    layer = LengthMixing(max_length=8, name="mixing", **kwargs)
    layer.build((None, None, 6))
    rng = np.random.default_rng(0)
    h = rng.normal(size=layer.mixing_matrix.shape).astype("float32")
    layer.mixing_matrix.assign(h)
    return layer, h, rng.normal(size=(2, 6, 6)).astype("float32")


@DTYPES
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_dense_mixing_against_numpy(softmax, causal, padded, dtype, tol):
    layer, h, x = make(softmax=softmax, causal=causal, dtype=dtype)
    mask = np.array([[1] * 6, [1] * 4 + [0] * 2], "int32") if padded else None
    y = compiled(layer)(x, context=Context(padding_mask=mask))
    assert_equals(y, numpy_mixing(h[0], x, mask, causal, softmax), tol)


def test_heads_mix_groups_of_consecutive_channels():
    layer, h, x = make(num_mixing_heads=3, softmax=True)
    y = np.array(compiled(layer)(x, context=Context()))
    for head in range(3):
        group = slice(2 * head, 2 * head + 2)
        expected = numpy_mixing(h[head], x[..., group])
        np.testing.assert_allclose(y[..., group], expected, atol=1e-5)


def test_toeplitz_of_a_short_sequence_is_the_corner_of_the_long_one():
    layer, w, _ = make(toeplitz=True)
    full = numpy_toeplitz(w)
    np.testing.assert_array_equal(np.array(layer.matrix(5)), full[:, :5, :5])


@pytest.mark.parametrize("heads", [1, 3])
def test_token_bias_is_one_number_per_position_and_head(heads):
    layer, _, x = make(use_bias=True, bias_initializer="ones", num_mixing_heads=heads)
    layer.mixing_matrix.assign(np.zeros((heads, 8, 8), "float32"))
    bias = np.arange(heads * 8, dtype="float32").reshape(heads, 8)
    layer.spatial_bias.assign(bias if heads > 1 else bias[0])
    y = np.array(compiled(layer)(x, context=Context()))
    expected = np.repeat(bias[:, :6].T, 6 // heads, axis=1)
    np.testing.assert_array_equal(y, np.broadcast_to(expected, x.shape))


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_an_example_of_padding_alone_is_finite_and_so_are_gradients(dtype):
    layer, h, x = make(softmax=True, dtype=dtype)
    mask = np.array([[0] * 6, [1] * 6], "int32")
    y, gradients = outputs_and_gradients(
        lambda: layer(ops.convert_to_tensor(x), context=Context(padding_mask=mask)),
        layer,
    )
    np.testing.assert_array_equal(y[0], 0)
    expected = numpy_mixing(h[0], x[1:])[0]
    tolerance = 1e-5 if dtype == "float32" else 0.02
    np.testing.assert_allclose(y[1].astype("float32"), expected, atol=tolerance)
    (gradient,) = gradients.values()
    assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0.01


@pytest.mark.parametrize("mass", [1e-4, 1e-8, 1e-16])
def test_real_keys_of_little_mass_are_mixed_as_if_alone(mass):
    layer, h, x = make(softmax=True)
    h[:, :, 5] = np.log(1 / mass)  # The padding token's column.
    layer.mixing_matrix.assign(h)
    mask = np.array([[1] * 5 + [0]] * 2, "int32")
    y = np.array(compiled(layer)(x, context=Context(padding_mask=mask)))
    expected = numpy_mixing(h[0], x, mask)
    np.testing.assert_allclose(y[:, :5], expected[:, :5], atol=2e-5)


def test_softmax_of_the_matrix_is_float32_under_bfloat16():
    layer, h, _ = make(softmax=True, dtype="mixed_bfloat16")
    expected = np.exp(h) / np.exp(h).sum(-1, keepdims=True)
    np.testing.assert_allclose(np.array(layer.matrix(8)), expected, rtol=1e-5)


def test_dropout_on_the_matrix_is_shared_by_examples_and_keeps_the_mean():
    layer = LengthMixing(max_length=8, dropout_rate=0.25, name="mixing")
    layer.build((None, None, 8))
    layer.mixing_matrix.assign(np.ones((1, 8, 8), "float32"))
    # Each channel picks one key, so the outputs are the entries of the matrix.
    x = np.stack([np.eye(8)] * 2).astype("float32")
    train = compiled(functools.partial(layer, training=True), layer)
    draws = [np.array(train(x, context=Context())) for _ in range(60)]
    for draw in draws:
        np.testing.assert_array_equal(draw[0], draw[1])
        assert set(np.unique(draw.round(4))) <= {0.0, np.float32(4 / 3).round(4)}
    assert abs(np.mean(draws) - 1) < 0.05
    np.testing.assert_array_equal(np.array(compiled(layer)(x, context=Context())), 1)


def test_errors_name_the_numbers():
    with pytest.raises(ValueError, match="num_mixing_heads=4, channels=6"):
        LengthMixing(max_length=8, num_mixing_heads=4).build((None, None, 6))
    layer, _, x = make()
    with pytest.raises(ValueError, match="9 tokens .* max_length=8"):
        layer(np.zeros((1, 9, 6), "float32"), context=Context())
    with pytest.raises(ValueError, match="segment_ids without positions"):
        compiled(layer)(x, context=Context(segment_ids=np.ones((2, 6), "int32")))
    with pytest.raises(ValueError, match="not causal"):
        layer.init_cache(2, 8, Context())


@pytest.mark.slow_on_jax
@DTYPES
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 5, 8])
@pytest.mark.parametrize("padded", [False, True])
def test_the_fft_equals_the_dense_product(
    length, causal, heads, padded, dtype, tol, monkeypatch
):
    layer, _, _ = make(
        toeplitz=True, causal=causal, num_mixing_heads=heads, use_bias=True, dtype=dtype
    )
    x = np.random.default_rng(1).normal(size=(2, length, 6)).astype("float32")
    mask = None
    if padded:
        mask = np.array([[1] * length, [1] * (length - 1) + [0]], "int32")
    context = Context(padding_mask=mask)
    dense = np.array(ops.cast(compiled(layer)(x, context=context), "float32"))
    products = []
    product = fft_product.fft_product
    monkeypatch.setattr(
        fft_product,
        "fft_product",
        lambda *args: products.append(args) or product(*args),
    )
    monkeypatch.setattr(fft_product, "is_chosen", lambda length: True)
    fft = compiled(layer)(x, context=context)
    assert len(products) == 1 and fft.dtype == layer.compute_dtype
    fft = np.array(ops.cast(fft, "float32"))
    np.testing.assert_allclose(fft, dense, atol=tol * max(1.0, np.abs(dense).max()))


def test_no_fft_where_the_matrix_itself_is_needed(monkeypatch):
    layer, _, x = make(toeplitz=True, softmax=True)
    expected = np.array(compiled(layer)(x, context=Context()))
    monkeypatch.setattr(fft_product, "is_chosen", lambda length: True)
    monkeypatch.delattr(fft_product, "fft_product")
    y = np.array(compiled(layer)(x, context=Context()))
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(("heads", "toeplitz"), [(1, False), (2, True)])
def test_decoding_with_heads(heads, toeplitz):
    layer, _, _ = make(
        num_mixing_heads=heads, causal=True, softmax=True, toeplitz=toeplitz
    )
    cache = layer.init_cache(2, 6, Context())
    assert cache["inputs"].shape == (2 * heads, 6, 6 // heads)
    trial = Trial(layer, d_model=6, length=6)
    trial.jit = compiled
    trial.check_decoding()


def optimized_hlo(function, x):
    """The program that XLA makes of a function of one array, as text."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.jit(function).lower(x).compile().as_text()
    import tensorflow as tf

    x = tf.constant(x)
    compiled_function = tf.function(function, jit_compile=True)
    return compiled_function.experimental_get_compiler_ir(x)(stage="optimized_hlo")


@pytest.mark.parametrize(
    ("heads", "hypotheses"),
    [
        (2, 2),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in [(1, 1), (1, 2), (2, 1)]),
    ],
)
def test_xla_writes_the_cache_once_a_step(hypotheses, heads):
    layer, _, _ = make(num_mixing_heads=heads, causal=True, softmax=True)
    rows, length = 2 * hypotheses, 7
    ancestry = np.ones((2, hypotheses, 1, hypotheses, length), "float32")

    def steps(x):
        def step(t, x, cache):
            positions = ops.arange(length, dtype="int32")
            state = DecodeState(t, positions, ancestry if hypotheses > 1 else None)
            y, cache = layer.decode_step(x, cache, Context(), state)
            return t + 1, y, cache

        start = ops.convert_to_tensor(0, "int32")
        start = start, x, layer.init_cache(rows, length, Context())
        return ops.while_loop(lambda t, *_: t < length, step, start)[1]

    hlo = optimized_hlo(steps, np.ones((rows, 1, 6), "float32"))
    body = re.search(r"body=%([\w.-]+)", hlo)[1]
    lines = hlo.split(f"\n%{body} (")[1].split("\n}")[0].splitlines()
    made = [re.match(r".* = \w+\[([\d,]*)\]\S* ([\w-]+)\(", line) for line in lines]
    made = [
        match[2]
        for match in made
        if match and math.prod(map(int, filter(None, match[1].split(",")))) == rows * 42
    ]
    made = [name for name in made if name not in ("get-tuple-element", "bitcast")]
    assert made == ["fusion"]
