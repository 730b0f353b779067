"""The Remixer block's equations against NumPy."""

import math

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import Context, RemixerBlock
from tests.compiled import compiled
from tests.layers.harness import DTYPES, assert_equals, randomize


def gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_remixer(layer, x, alpha=0.5, composition="full", as_printed=False):
    weights = {
        w.path.split("/", 1)[1]: ops.convert_to_numpy(w)
        for w in layer.trainable_weights
    }
    h = weights["mixing/mixing_matrix"][0][: x.shape[1], : x.shape[1]]
    hidden = gelu(x @ weights["wi_0/kernel"]) * (x @ weights["wi_1/kernel"])
    mixed = softmax(h) @ hidden
    if alpha == "gated":
        alpha = sigmoid(
            hidden @ weights["alpha_gate/kernel"] + weights["alpha_gate/bias"]
        )
    elif isinstance(alpha, str):
        alpha = sigmoid(weights["alpha_logit"])
    product, difference = mixed * hidden, hidden - mixed
    composed = alpha * product + (1 - alpha) * difference
    if composition == "gate":
        gate = sigmoid(hidden @ weights["gate/kernel"] + weights["gate/bias"])
        composed = gate * composed + (1 - gate) * mixed
    elif composition != "full":
        composed = {
            "none": mixed,
            "multiplicative": product,
            "subtractive": difference,
        }[composition]
    if as_printed:
        return composed @ weights["wo/kernel"] + hidden
    return (composed + hidden) @ weights["wo/kernel"]


@DTYPES
@pytest.mark.parametrize("width", [None, 6, 10])
@pytest.mark.parametrize(
    "alpha, composition",
    [
        (0.5, "full"),
        (0.0, "full"),
        (1.0, "full"),
        ("learned_scalar", "full"),
        ("learned_vector", "full"),
        ("gated", "full"),
        (0.5, "none"),
        (0.5, "multiplicative"),
        (0.5, "subtractive"),
        (0.5, "gate"),
        ("learned_vector", "gate"),
    ],
)
def test_equations(width, alpha, composition, dtype, tol):
    options = {"alpha": alpha, "composition": composition, "dtype": dtype}
    layer = RemixerBlock(max_length=8, width=width, name="remixer", **options)
    layer.build((None, None, 6))
    randomize(layer)
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    expected = numpy_remixer(layer, x, alpha, composition, as_printed=width != 10)
    assert_equals(compiled(layer)(x, context=Context()), expected, tol)


def test_learned_alpha_starts_at_one_half():
    layer = RemixerBlock(8, width=10, alpha="learned_vector", name="remixer")
    layer.build((None, None, 6))
    assert layer.alpha_logit.shape == (10,)
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    constant = RemixerBlock(8, width=10, alpha=0.5, name="remixer")
    constant.build((None, None, 6))
    constant.set_weights([w for w in layer.get_weights() if w.shape != (10,)])
    np.testing.assert_allclose(
        np.array(compiled(layer)(x, context=Context())),
        np.array(constant(x, context=Context())),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"alpha": 1.5}, "alpha=1.5"),
        ({"alpha": "learnt"}, "alpha='learnt'"),
        ({"composition": "sum"}, "composition='sum'"),
        ({"composition": "none", "alpha": 0.1}, "has no alpha"),
        ({"num_mixing_heads": 4}, "num_heads=4, width=6"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        RemixerBlock(max_length=8, **arguments).build((None, None, 6))
