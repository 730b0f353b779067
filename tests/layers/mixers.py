"""Tools that the tests of mixers share: masks, equations, files, FLOPs."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import Context, DecodeState, capture
from tests.compiled import compiled
from tests.layers.harness import assert_equals, randomize

LENGTH, WIDTH = 6, 8
PADDING = np.array([[1] * LENGTH, [1] * (LENGTH - 2) + [0] * 2], "int32")
ON_JAX = keras.backend.backend() == "jax"


def _both(of_encoders, of_decoders):
    """Parameters "causal", with marks for each."""
    return pytest.mark.parametrize(
        "causal",
        [
            pytest.param(False, marks=[getattr(pytest.mark, x) for x in of_encoders]),
            pytest.param(True, marks=[getattr(pytest.mark, x) for x in of_decoders]),
        ],
    )


# Equations are quick on TensorFlow; JAX compiles for seconds, and so do the rules.
CAUSAL = _both(["slower"], ["slow"]) if ON_JAX else _both([], [])
RULES = _both(["slower"], ["slower"]) if ON_JAX else _both(["slower"], ["slow"])


def visible(causal, padding=PADDING):
    """Which sources each target may read: bool `[batch, target, source]`."""
    seen = np.broadcast_to(padding[:, None] > 0, (len(padding), LENGTH, LENGTH))
    return seen & np.tri(LENGTH, dtype=bool) if causal else seen


def softmax(x, seen=True):
    """Over the last axis, of what is seen; float64."""
    x = np.where(seen, np.exp(x - x.max(-1, keepdims=True)), 0.0)
    return x / x.sum(-1, keepdims=True)


def built(factory, **options):
    """A layer with random weights, and its weights in float64 by their paths."""
    layer = factory(name="layer", **options)
    layer.build((None, None, WIDTH))
    randomize(layer)
    weights = {
        v.path.split("/", 1)[1]: ops.convert_to_numpy(v).astype("float64")
        for v in layer.weights
    }
    return layer, weights


def inputs(seed=0):
    return np.random.default_rng(seed).normal(size=(2, LENGTH, WIDTH)).astype("float32")


def check_equation(layer, expected, padding=PADDING, tolerance=2e-5):
    """Compares a layer's outputs on real tokens with `expected`, of `inputs()`."""
    mask = ops.convert_to_tensor(padding)
    y = np.array(compiled(layer)(inputs(), context=Context(padding_mask=mask)))
    real = padding[..., None]
    assert_equals(y * real, expected * real, tolerance)


def sown(layer, name="mixing"):
    """The value that a call without padding sows under the name, float array."""
    found = {}
    with capture("intermediates", lambda _, key, value: found.update({key: value})):
        layer(ops.convert_to_tensor(inputs()), context=Context())
    return np.array(found[name])


def check_files(factory, folder, causal=True):
    """Converts the layer to LiteRT and ONNX, whole and two steps, and compares both."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("converters read TensorFlow's graphs")
    import tensorflow as tf

    from remixer_tf.serving import litert, onnx_runtime
    from tests.serving.test_converted import OfTokens, check, mix

    def steps(layer, x, mask):
        cache = layer.init_cache(tf.shape(x)[0], LENGTH, Context())
        for place in range(2):
            state = DecodeState(tf.constant(place), tf.range(LENGTH))
            now = x[:, place : place + 1]
            y, cache = layer.decode_step(now, cache, Context(), state)
        return y

    for runtime in (litert, onnx_runtime):
        for call in (mix, steps) if causal else (mix,):
            layer = factory(name="layer", max_length=LENGTH, causal=causal)
            layer.build((None, None, WIDTH))
            module = OfTokens(layer, call, runtime.BATCHES[0])
            check(runtime, module, [module.function], folder)


def flops(layer, length=LENGTH):
    """(of products, of the rest, types without a formula) of a call of one example."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("counts TensorFlow's operations")
    import tensorflow as tf

    from remixer_tf.engines.tensorflow.flops import op_flops

    function = tf.function(functools.partial(layer, context=Context()))
    found = op_flops(function.get_concrete_function(tf.TensorSpec([1, length, WIDTH])))
    uncounted = {op.type for op in found if not (op.matmul or op.rest)}
    return sum(op.matmul for op in found), sum(op.rest for op in found), uncounted
