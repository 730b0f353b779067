"""Mixtures of experts against NumPy, and their moves against each other."""

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import BaseRouter, HashRouter
from remixer_tf.layers.assignment import assign_balanced
from tests.compiled import outputs_and_gradients, slow_on_jax
from tests.layers.mixtures import (
    MASK,
    TOKENS,
    D,
    E,
    X,
    by_every_expert,
    context,
    mixture,
    roomy,
    run,
    set_move,
)

# They take an expert whatever others take.
OTHERS = ["switch", "hash"]
INDEPENDENT = slow_on_jax(["gshard", *OTHERS], but=["gshard"])


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def numpy_route(layer, x, tokens):
    """(expert, gate) of each choice of one token."""
    router = layer.router
    if isinstance(router, HashRouter):
        return [(int(ops.convert_to_numpy(router.table)[tokens]), 1.0)]
    logits = x @ ops.convert_to_numpy(router.kernel)
    if isinstance(router, BaseRouter):
        return [(logits.argmax(), 1 / (1 + np.exp(-logits.max())))]
    p = softmax(logits)
    best = np.argsort(-p)[: router.k]
    gates = p[best] / p[best].sum() if router.k == 2 else p[best]
    return list(zip(best, gates, strict=True))


def numpy_mixture(layer, capacity, groups=3):
    """Token by token: the output, and the number of choices dropped."""
    wi, wo = ops.convert_to_numpy(layer.wi[0]), ops.convert_to_numpy(layer.wo)
    y, dropped = np.zeros((24, D)), 0
    tokens, mask = TOKENS.reshape(-1), MASK.reshape(-1)
    x = X.reshape(-1, D)
    for group in np.split(np.arange(24), groups):
        room = np.full(E, capacity)
        for choice in range(layer.router.k):
            for t in group[mask[group] > 0]:
                expert, gate = numpy_route(layer, x[t], tokens[t])[choice]
                if room[expert]:
                    room[expert] -= 1
                    hidden = np.maximum(x[t] @ wi[expert], 0)
                    y[t] += gate * (hidden @ wo[expert])
                else:
                    dropped += 1
    return y.reshape(X.shape), dropped


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("move", slow_on_jax(["gather", "exchange"], but=["gather"]))
@pytest.mark.parametrize("router", INDEPENDENT)
def test_training_equals_numpy(router, move, monkeypatch):
    """With full experts, three groups and padding."""
    set_move(monkeypatch, move)
    layer = mixture(router)
    layer.router.capacity = lambda tokens: 2
    expected, dropped = numpy_mixture(layer, capacity=2)
    assert dropped
    y, sown = run(layer)
    np.testing.assert_allclose(y, expected, atol=1e-4)
    share = dropped / (MASK.sum() * layer.router.k)
    np.testing.assert_allclose(sown["statistics", "dropped"], share, rtol=1e-5)


@pytest.mark.parametrize("router", [*INDEPENDENT, *slow_on_jax(["base"], but=[])])
def test_evaluation_equals_numpy(router):
    layer = mixture(router)
    expected, dropped = numpy_mixture(layer, capacity=99)
    y, sown = run(layer, training=False)
    np.testing.assert_allclose(y, expected, atol=1e-4)
    assert sown["statistics", "dropped"] == dropped == 0
    assert not [name for name in sown if name[0] == "losses"]


@pytest.mark.slow_on_jax
@pytest.mark.parametrize(
    "router", ["gshard", *(pytest.param(r, marks=pytest.mark.slow) for r in OTHERS)]
)
def test_moves_equal_every_expert(router, monkeypatch):
    """Where nothing drops: outputs and gradients, in training and in evaluation."""
    x = ops.convert_to_tensor(X)
    layer = mixture(roomy(router), gated=True)
    expected, gradients = outputs_and_gradients(
        lambda: by_every_expert(layer, x), layer
    )
    assert np.abs(expected).max() > 1
    for move, training in (("gather", True), ("exchange", True), ("gather", False)):
        set_move(monkeypatch, move)
        y, grads = outputs_and_gradients(
            lambda training=training: layer(x, context=context(), training=training),
            layer,
        )
        np.testing.assert_allclose(y, expected, atol=1e-4)
        for name, gradient in gradients.items():
            assert np.abs(gradient).max() > 1e-3, name
            np.testing.assert_allclose(grads[name], gradient, atol=1e-4, err_msg=name)


def expert_outputs(layer):
    """Each expert's output for each token, `[E, 24, D]`."""
    wi, wo = (ops.convert_to_numpy(weight) for weight in (layer.wi[0], layer.wo))
    return np.maximum(X.reshape(-1, D) @ wi, 0) @ wo


@pytest.mark.slow_on_jax
def test_base_in_training_equals_numpy():
    """Given the assignment, which `test_assignment` tests: no expert computes more."""
    layer = mixture("base", group_size=24)
    logits = X.reshape(-1, D) @ ops.convert_to_numpy(layer.router.kernel)
    mask = MASK.reshape(-1)
    experts = assign_balanced(
        ops.convert_to_tensor(logits[None]), ops.convert_to_tensor(mask[None])
    )
    experts = ops.convert_to_numpy(experts)[0]
    assert np.bincount(experts[mask > 0]).max() == -(-mask.sum() // E)
    each = np.arange(24)
    gates = mask / (1 + np.exp(-logits[each, experts]))
    expected = gates[:, None] * expert_outputs(layer)[experts, each]
    y, sown = run(layer)
    np.testing.assert_allclose(y, expected.reshape(X.shape), atol=1e-4)
    agrees = (experts == logits.argmax(1))[mask > 0].mean()
    assert 0.2 < agrees < 1
    np.testing.assert_allclose(sown["statistics", "agreement"], agrees, rtol=1e-5)
