"""The Remixer block's equations against NumPy."""

import functools
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


def numpy_remixer(layer, x, alpha=0.5, composition="full", residual="hidden"):
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
    if residual == "output":
        return composed @ weights["wo/kernel"] + hidden
    return (composed + hidden) @ weights["wo/kernel"]


@DTYPES
@pytest.mark.parametrize(
    "d_ff, residual", [(None, "output"), (6, "hidden"), (10, "hidden")]
)
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
def test_equations(d_ff, residual, alpha, composition, dtype, tol):
    options = {"alpha": alpha, "composition": composition, "dtype": dtype}
    options |= {"d_ff": d_ff, "residual": residual}
    layer = RemixerBlock(max_length=8, name="remixer", **options)
    layer.build((None, None, 6))
    randomize(layer)
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    expected = numpy_remixer(layer, x, alpha, composition, residual)
    assert_equals(compiled(layer)(x, context=Context()), expected, tol)


@pytest.mark.parametrize("residual", ["output", "hidden"])
def test_dropout_is_on_what_the_last_projection_reads(residual):
    """As T5's: one mask for all positions; what is kept is divided by 1 - p."""
    layer = RemixerBlock(max_length=8, residual=residual, dropout_rate=0.25)
    layer.build((None, None, 400))
    randomize(layer)
    layer.wo.kernel.assign(np.eye(400))  # Y shows what W_3 reads.
    x = np.random.default_rng(0).normal(size=(2, 5, 400)).astype("float32") / 10
    y = numpy_remixer(layer, x, residual=residual)
    added = 0  # X', which is never dropped, where it is added behind W_3
    if residual == "output":
        subtractive = numpy_remixer(layer, x, composition="subtractive")
        none = numpy_remixer(layer, x, composition="none")
        added = (subtractive + none) / 3  # (X' - X_S + X') + (X_S + X')
    train = compiled(functools.partial(layer, training=True), layer)
    kept = (np.array(train(x, context=Context())) - added) / (y - added)
    np.testing.assert_allclose(kept, kept[:, :1].repeat(5, 1), atol=0.01)
    kept = kept[:, 0]
    dropped = np.abs(kept) < 0.01
    np.testing.assert_allclose(kept[~dropped], 4 / 3, atol=0.01)
    assert 0.2 < dropped.mean() < 0.3 and not (dropped[0] == dropped[1]).all()
    np.testing.assert_allclose(compiled(layer)(x, context=Context()), y, atol=1e-4)


def test_learned_alpha_starts_at_one_half():
    options = {"d_ff": 10, "residual": "hidden", "name": "remixer"}
    layer = RemixerBlock(max_length=8, alpha="learned_vector", **options)
    layer.build((None, None, 6))
    assert layer.alpha_logit.shape == (10,)
    x = np.random.default_rng(0).normal(size=(2, 5, 6)).astype("float32")
    constant = RemixerBlock(max_length=8, alpha=0.5, **options)
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
        ({"num_mixing_heads": 4}, "num_mixing_heads=4, channels=6"),
        ({"residual": "inner"}, "residual='inner'"),
        ({"d_ff": 10}, "d_ff=10, d_model=6"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        RemixerBlock(max_length=8, **arguments).build((None, None, 6))
