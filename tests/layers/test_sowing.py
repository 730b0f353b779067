"""Values that layers sow, against NumPy."""

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import (
    Context,
    LengthMixing,
    RemixerBlock,
    SelfAttention,
    capture,
    sow,
)
from tests.layers.harness import randomize

X = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")


def built(layer):
    layer.build((None, None, 6))
    randomize(layer)
    return layer


def captured(layer, context=None):
    """{name: value} of all that a call sows for pictures, and its output."""
    sown = {}

    def receive(layer, name, value):
        assert (layer.path, name) not in sown
        sown[layer.path, name] = np.array(ops.convert_to_numpy(value), "float32")

    with capture("intermediates", receive):
        y = layer(X, context=context or Context())
    return {name: value for (_, name), value in sown.items()}, np.array(y)


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("causal", [False, True])
def test_attention_rows_sum_to_one_and_equal_numpy(causal):
    layer = built(SelfAttention(num_heads=2, d_kv=4, causal=causal, name="attention"))
    mask = np.array([[1] * 5, [1] * 3 + [0] * 2], "int32")
    sown, y = captured(layer, Context(padding_mask=ops.convert_to_tensor(mask)))
    weights = sown["attention"]
    assert weights.shape == (2, 2, 5, 5)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    query, key = (
        (X @ np.array(getattr(layer, name).kernel)).reshape(2, 5, 2, 4)
        for name in ("query", "key")
    )
    logits = np.einsum("bthk,bshk->bhts", query, key)
    logits = np.where(mask[:, None, None], logits, -np.inf)
    if causal:
        logits = np.where(np.tri(5), logits, -np.inf)
    expected = np.exp(logits - logits.max(-1, keepdims=True))
    expected /= expected.sum(-1, keepdims=True)
    np.testing.assert_allclose(weights, expected, atol=1e-5)
    np.testing.assert_array_equal(
        y, np.array(layer(X, context=Context(padding_mask=ops.convert_to_tensor(mask))))
    )


@pytest.mark.parametrize("options", [{"softmax": True}, {"toeplitz": True}])
def test_mixing_sows_the_layers_matrix(options):
    options = {"max_length": 8, "num_mixing_heads": 2, "name": "mixing", **options}
    layer = built(LengthMixing(**options))
    sown, y = captured(layer)
    np.testing.assert_array_equal(sown["mixing"], np.array(layer.matrix(5)))
    mixed = np.einsum("hts,bshc->bthc", sown["mixing"], X.reshape(2, 5, 2, 3))
    np.testing.assert_allclose(y, mixed.reshape(2, 5, 6), atol=1e-5)


@pytest.mark.parametrize("alpha", [0.25, "learned_vector", "gated"])
def test_remixer_sows_alpha(alpha):
    layer = built(RemixerBlock(4, residual="hidden", alpha=alpha, max_length=8))
    sown, _ = captured(layer)
    assert sown.keys() == {"mixing", "alpha"}
    if alpha == 0.25:
        assert sown["alpha"] == 0.25
    elif alpha == "gated":
        assert sown["alpha"].shape == (2, 5, 4)
    else:
        expected = 1 / (1 + np.exp(-np.array(layer.alpha_logit)))
        np.testing.assert_allclose(sown["alpha"], expected, rtol=1e-6)


def test_nothing_is_captured_after_the_block():
    sown = []
    layer = built(SelfAttention(num_heads=2, d_kv=4, name="attention"))
    with (
        pytest.raises(RuntimeError, match="inside"),
        capture("intermediates", lambda *_: sown.append(1)),
    ):
        layer(X, context=Context())
        raise RuntimeError("inside")
    layer(X, context=Context())
    assert sown == [1]


def test_each_collection_has_its_own_receiver():
    layer = SelfAttention(num_heads=2, d_kv=4, name="attention")
    first, second = [], []
    with (
        capture("losses", lambda *sown: first.append(sown)),
        capture("intermediates", lambda *sown: second.append(sown)),
    ):
        sow(layer, "losses", "a", 1.0)
        sow(layer, "intermediates", "b", lambda: 2.0)
        sow(layer, "statistics", "c", lambda: pytest.fail("nobody captures it"))
    assert first == [(layer, "a", 1.0)] and second == [(layer, "b", 2.0)]
