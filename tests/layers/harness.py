"""One harness for every sublayer: the rules of token mixing, each as an assertion."""

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import Context, checking
from tests.compiled import compiled, outputs_and_gradients, slow_on_jax

D_MODEL = 12
# Policies, and how far from NumPy they may be, relative to the largest number. On JAX
# `run_sublayer_test` has each layer in bfloat16.
DTYPES = pytest.mark.parametrize(
    "dtype, tol",
    slow_on_jax([("float32", 2e-5), ("mixed_bfloat16", 0.03)], but=[("float32", 2e-5)]),
)


def randomize(layer, seed=1):
    """Gives every weight a random value, so that zeros and ones hide nothing."""
    rng = np.random.default_rng(seed)
    for weight in layer.trainable_weights:
        weight.assign(rng.normal(size=weight.shape, scale=0.5).astype("float32"))


def assert_equals(y, expected, tol):
    """Checks a layer's output of any dtype against NumPy's, see `DTYPES`."""
    y = np.array(ops.cast(y, "float32"))
    np.testing.assert_allclose(
        y, expected, rtol=0, atol=tol * max(1.0, np.abs(expected).max())
    )


def run_sublayer_test(
    factory,
    length=7,
    causal=False,
    max_length=None,
    mixes_tokens=True,
    reads_encoder=False,
    packs=True,
):
    """Checks a sublayer against the rules that hold for all of them.

    Args:
        factory: a function of keyword arguments (`name`, `dtype`) to a new sublayer,
            without dropout.
        length: int, of the test sequences.
        causal: bool, whether the sublayer hides later tokens, and so can decode.
        max_length: int, the longest sequence it accepts, or None for any.
        mixes_tokens: bool, False for position-wise sublayers.
        reads_encoder: bool, whether it needs `context.encoded`.
        packs: bool, False where packed examples must be refused.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, length, D_MODEL)).astype("float32")
    encoded = rng.normal(size=(2, 5, D_MODEL)).astype("float32")
    encoded_mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "int32")
    context = Context()
    if reads_encoder:
        context = Context(
            encoded=ops.convert_to_tensor(encoded),
            encoded_mask=ops.convert_to_tensor(encoded_mask),
        )
    layer = factory(name="sublayer")
    layer.build((None, None, D_MODEL))
    randomize(layer)

    call = compiled(layer)

    def run(x, **fields):
        fields = {k: ops.convert_to_tensor(v) for k, v in fields.items()}
        x = ops.convert_to_tensor(x)
        return np.array(call(x, context=context._replace(**fields)), "float32")

    assert bool(layer.causal) == (causal or not mixes_tokens)
    y = run(x)
    assert y.shape == x.shape and np.isfinite(y).all()
    _check_dtypes(factory, layer, x, y, context)
    _check_config(layer, x, y, context)
    _check_gradients(layer, x, y, context)
    if max_length is not None:
        _check_over_length(run, max_length)
    if not reads_encoder:
        _check_padding(run, x)
        if packs:
            checking.check_packing(layer, run, x, tolerance=2e-5)
    if causal or not mixes_tokens:
        checking.check_causal(layer, run, x)
        check_decoding(layer, x, y, context)
    elif mixes_tokens and not reads_encoder:
        changed = x.copy()
        changed[:, -1] += 1
        assert np.abs(run(changed)[:, 0] - y[:, 0]).max() > 1e-4, "sees nothing ahead"
    return layer


def _check_dtypes(factory, layer, x, y, context):
    mixed = factory(name="sublayer", dtype="mixed_bfloat16")
    mixed.build((None, None, D_MODEL))
    mixed.set_weights(layer.get_weights())
    assert {w.dtype for w in mixed.trainable_weights} == {"float32"}
    out = compiled(mixed)(ops.convert_to_tensor(x), context=context)
    assert keras.backend.standardize_dtype(out.dtype) == "bfloat16"
    error = np.abs(np.array(ops.cast(out, "float32")) - y).max()
    assert error < 0.05 * max(1.0, np.abs(y).max())


def _check_config(layer, x, y, context):
    copy = type(layer).from_config(layer.get_config())
    copy.build((None, None, D_MODEL))
    copy.set_weights(layer.get_weights())
    out = np.array(compiled(copy)(ops.convert_to_tensor(x), context=context))
    np.testing.assert_array_equal(out, y)
    assert [w.path for w in copy.weights] == [w.path for w in layer.weights]


def _check_gradients(layer, x, y, context):
    """They reach every weight; `test_backends_tf` compares their values."""
    x = ops.convert_to_tensor(x)
    outputs, gradients = outputs_and_gradients(lambda: layer(x, context=context), layer)
    np.testing.assert_allclose(outputs, y, atol=1e-5)
    for path, gradient in gradients.items():
        assert gradient is not None, f"no gradient reaches {path}"
        # A key's bias adds the same to all of a row's logits: its gradient is zero.
        assert path.endswith("key/bias") or np.abs(gradient).max() > 0, path


def _check_over_length(run, max_length):
    too_long = np.zeros((2, max_length + 1, D_MODEL), "float32")
    try:
        run(too_long)
    except ValueError as error:
        assert str(max_length) in str(error) and str(max_length + 1) in str(error)
    else:
        raise AssertionError("a sequence over max_length was accepted")
    run(too_long[:, :max_length])


def _check_padding(run, x):
    """Outputs on real tokens depend neither on padding's content nor its length."""
    real = x.shape[1] - 3
    mask = np.ones(x.shape[:2], "int32")
    mask[:, real:] = 0
    full = run(x, padding_mask=mask)[:, :real]
    one_pad = run(x[:, : real + 1], padding_mask=mask[:, : real + 1])[:, :real]
    alone = run(x[:, :real], padding_mask=mask[:, :real])
    np.testing.assert_allclose(one_pad, full, atol=2e-5)
    np.testing.assert_allclose(alone, full, atol=2e-5)
    np.testing.assert_allclose(run(x[:, :real]), full, atol=2e-5)


def check_decoding(layer, x, y, context):
    """Checks that step by step, with a cache, a layer makes what the y of a whole x."""
    decode_step = compiled(layer.decode_step, layer)
    cache = layer.init_cache(x.shape[0], x.shape[1], context)
    assert all(value.shape[0] % x.shape[0] == 0 for value in cache.values())
    checking.check_decoding(layer, x, y, context, decode_step, tolerance=2e-5)
