"""Models that compute in float16: finite where float16's 65,504 would be exceeded."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.decoding import greedy_decode
from remixer_tf.layers import (
    Context,
    FeedForward,
    GatedFeedForward,
    LengthMixing,
    MoE,
    RemixerBlock,
    Sublayer,
    TokenMixingMLP,
)
from remixer_tf.models import PostNormBlock, TransformerStack
from tests.compiled import compiled, in_graph, outputs_and_gradients
from tests.models.tiny import (
    read_by,
    tiny_batch,
    tiny_decoder,
    tiny_model,
)

POLICY = "mixed_float16"


def check(make, batch):
    """Outputs in float16 are finite and near those of float32; returns the model."""
    reference, model = make(), make(dtype=POLICY)
    model.set_weights(reference.get_weights())
    assert {v.dtype for v in model.trainable_variables} == {"float32"}
    logits = compiled(model)(batch)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    expected = np.array(compiled(reference)(batch))
    error = np.array(logits) - expected
    assert np.sqrt((error**2).mean() / (expected**2).mean()) < 0.01
    return model


@pytest.mark.parametrize(
    "kind",
    ["remixer", *(pytest.param(k, marks=pytest.mark.slow) for k in ("t5_1_1", "gmlp"))],
)
def test_encoder_decoders_with_padding_rows(kind):
    batch = tiny_batch()
    batch["encoder_input_tokens"][-1] = 0
    batch["decoder_target_tokens"][-1] = 0
    check(functools.partial(tiny_model, kind), batch)


@pytest.mark.slower
@pytest.mark.parametrize("kind", ["bert", "gmlp_tmoe", "smlp"])
def test_decoders(kind):
    make = functools.partial(tiny_decoder, kind)
    model = check(make, read_by(make(), tiny_batch()))
    greedy_decode(model, {"encoder_input_tokens": np.ones((2, 2), "int32")}, 6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5_1_1", "remixer"])
def test_decoding(kind):
    inputs = {"encoder_input_tokens": tiny_batch()["encoder_input_tokens"]}
    keras.utils.set_random_seed(1)
    reference, model = tiny_model(kind), tiny_model(kind, dtype=POLICY)
    model.set_weights(reference.get_weights())
    expected, found = (greedy_decode(m, inputs, 5) for m in (reference, model))
    np.testing.assert_allclose(
        np.array(found.scores), np.array(expected.scores), rtol=0.02
    )


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(GatedFeedForward, 64, "relu"),
        functools.partial(MoE, 1, 64, activation="relu", gated=True),
    ],
)
def test_what_wo_sums_may_exceed_float16(make):
    """64 hidden units of 40 * 40, times a W_o of ones: 102,400."""
    layers = [make(name="layer", dtype=dtype) for dtype in ("float32", POLICY)]
    for layer in layers:
        layer.build((None, None, 4))
        for weight in layer.weights:
            one = "wo" in weight.path
            weight.assign(np.full(weight.shape, 1.0 if one else 10.0))
        x = ops.ones((1, 2, 4), layer.compute_dtype)
        y = np.array(layer(x, context=Context()))
        np.testing.assert_allclose(y, np.full(y.shape, 102_400.0), rtol=1e-3)


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(GatedFeedForward, 4),
        functools.partial(MoE, 1, 4, activation="gelu", gated=True),
        functools.partial(
            RemixerBlock, 4, residual="hidden", max_length=2, causal=True
        ),
        pytest.param(
            functools.partial(TokenMixingMLP, 4, gated=True, max_length=2),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_gate_that_is_closed(make):
    """gelu(-400) is 0, and its derivative: so are their products with 400.

    The answers are finite in a graph too, whose order of products is TensorFlow's.
    """
    layer = make(name="layer", dtype=POLICY)
    layer.build((None, None, 4))
    size = 200.0 if "TokenMixing" in type(layer).__name__ else 100.0
    for weight in layer.weights:
        if "wi" in weight.path:
            sign = 1.0 if "wi_1" in weight.path else -1.0
            weight.assign(np.full(weight.shape, sign * size))
    x = ops.ones((1, 2, 4), "float16")
    call = functools.partial(layer, context=Context())
    y = np.array(in_graph(call, layer)(x))
    np.testing.assert_array_equal(y, np.zeros_like(y))
    _, gradients = outputs_and_gradients(lambda: layer(x, context=Context()), layer)
    for path, gradient in gradients.items():
        if gradient is not None:
            np.testing.assert_array_equal(gradient, np.zeros_like(gradient), path)


@pytest.mark.parametrize("name", ["gelu", "gelu_exact", "mish"])
def test_derivatives_of_large_activations(name):
    """act(400) is 400 and its derivative 1; products with 100 stay below 65,504."""
    layer = FeedForward(1, name, dtype=POLICY)
    layer.build((None, None, 1))
    layer.wi.kernel.assign([[1.0]])
    layer.wo.kernel.assign([[100.0]])
    x = ops.cast([[[400.0], [-400.0]]], "float16")
    y = np.array(layer(x, context=Context()))[0, :, 0]
    np.testing.assert_allclose(y, [40_000.0, 0.0], rtol=1e-3)
    _, gradients = outputs_and_gradients(
        lambda: layer(x, context=Context()) / 4e4, layer
    )
    # softsign'(1) = 1 / 4, times the kernel, x and the derivative.
    expected = 100.0 * 400.0 / 4e4 / 4
    np.testing.assert_allclose(gradients[layer.wi.kernel.path], expected, rtol=1e-2)


def test_a_remixers_composition_may_exceed_float16():
    """X' = 400 everywhere: X_C + X' = (400 * 400) / 2 + 400, times a W_3 of 1 / 64."""
    for dtype in ("float32", POLICY):
        layer = RemixerBlock(
            64,
            residual="hidden",
            activation="relu",
            max_length=4,
            causal=True,
            dtype=dtype,
        )
        layer.build((None, None, 4))
        for weight in layer.weights:
            if "wi" in weight.path:
                weight.assign(np.full(weight.shape, 5.0))
            if "wo" in weight.path:
                weight.assign(np.full(weight.shape, 1 / 64))
        y = np.array(layer(ops.ones((1, 2, 4), layer.compute_dtype), context=Context()))
        np.testing.assert_allclose(y, np.full(y.shape, 80_400.0), rtol=1e-3)


def test_a_small_mass_of_real_positions_keeps_its_mean():
    """Padding has e^20 of their weight; the real inputs are 1, 2 and 3."""
    layer = LengthMixing(softmax=True, max_length=4, dtype=POLICY)
    layer.build((None, None, 1))
    layer.mixing_matrix.assign([[[0.0, 0.0, 0.0, 20.0]] * 4])
    x = ops.cast([[[1.0], [2.0], [3.0], [0.0]]], "float16")
    y = layer(x, context=Context(padding_mask=np.array([[1, 1, 1, 0]], "int32")))
    np.testing.assert_allclose(np.array(y, "float32")[0, :3, 0], [2, 2, 2], rtol=1e-3)


@pytest.mark.parametrize("block", [None, PostNormBlock])
def test_the_residual_stream_may_exceed_float16(block):
    """Two sublayers that each add 60,000 to all channels but the first."""

    class Add(Sublayer):
        causal = True

        def call(self, x, context, training=False):
            assert keras.backend.standardize_dtype(x.dtype) == self.compute_dtype
            return ops.zeros_like(x) + ops.cast([0.0, 6e4, 6e4, 6e4], x.dtype)

        def decode_step(self, x, cache, context, state):
            return self.call(x, context), cache

    options = {} if block is None else {"block": block}
    stack = TransformerStack({"add": Add}, num_layers=2, dtype=POLICY, **options)
    stack.build((None, None, 4))
    y, _ = stack(ops.ones((1, 2, 4)), context=Context())
    # A root mean square of 1, and the first channel is small.
    np.testing.assert_allclose(y[0, 0, 1:], np.full(3, (4 / 3) ** 0.5), rtol=1e-3)
