"""Mixtures of experts against NumPy, and what users of others suffer from."""

import functools

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import (
    Context,
    GShardRouter,
    HashRouter,
    MoE,
    SwitchRouter,
    capture,
)
from tests.compiled import compiled, outputs_and_gradients
from tests.layers.harness import randomize

E, D, D_FF, VOCAB_SIZE = 4, 12, 10, 40
RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 8, D)).astype("float32")
TOKENS = RNG.integers(0, VOCAB_SIZE, (3, 8)).astype("int32")
MASK = np.ones((3, 8), "int32")
MASK[1, 5:] = 0
# Without anything random, and of a capacity as small as can be: 4.
ROUTERS = {
    "switch": functools.partial(SwitchRouter, jitter=0.0, capacity_factor=0.1),
    "gshard": functools.partial(GShardRouter, second_policy="all", capacity_factor=0.1),
    "hash": functools.partial(HashRouter, vocab_size=VOCAB_SIZE, capacity_factor=0.1),
}


def context(mask=MASK, tokens=TOKENS):
    mask = None if mask is None else ops.convert_to_tensor(mask)
    return Context(tokens=ops.convert_to_tensor(tokens), token_mask=mask)


def mixture(router, group_size=12, **kwargs):
    """A built layer of random weights, large enough to tell experts apart."""
    router = ROUTERS.get(router, router)
    layer = MoE(E, D_FF, router, group_size=group_size, name="moe", **kwargs)
    layer.build((None, None, D))
    randomize(layer)
    return layer


def roomy(router, **kwargs):
    """A router under which nothing is dropped."""
    return functools.partial(ROUTERS[router], capacity_factor=float(E), **kwargs)


def run(layer, x=X, training=True, **fields):
    """The output, and what was sown: {(collection, name): value}."""
    sown = {}

    def call(x, context):
        seen = {}

        def receiver(collection):
            def receive(_, name, value):
                seen[collection, name] = ops.convert_to_tensor(value)

            return receive

        with capture("losses", receiver("losses")):
            with capture("statistics", receiver("statistics")):
                y = layer(x, context=context, training=training)
        return y, list(seen.values()), sown.update(dict.fromkeys(seen))

    y, values, _ = compiled(call, layer)(ops.convert_to_tensor(x), context(**fields))
    values = [np.array(value) for value in values]
    return np.array(ops.cast(y, "float32")), dict(zip(sown, values, strict=True))


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def numpy_route(layer, x, tokens):
    """(expert, gate) of each choice of one token."""
    router = layer.router
    if isinstance(router, HashRouter):
        return [(int(ops.convert_to_numpy(router.table)[tokens]), 1.0)]
    p = softmax(x @ ops.convert_to_numpy(router.kernel))
    best = np.argsort(-p)[: router.k]
    gates = p[best] / p[best].sum() if router.k == 2 else p[best]
    return list(zip(best, gates, strict=True))


def numpy_mixture(layer, capacity, groups=2):
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


@pytest.mark.parametrize("dispatch", ["gather", "einsum"])
@pytest.mark.parametrize("router", ROUTERS)
def test_training_equals_numpy(router, dispatch):
    """With full experts, two groups and padding."""
    layer = mixture(router, dispatch=dispatch)
    expected, dropped = numpy_mixture(layer, capacity=4)
    assert dropped
    y, sown = run(layer)
    np.testing.assert_allclose(y, expected, atol=1e-4)
    share = dropped / (MASK.sum() * layer.router.k)
    np.testing.assert_allclose(sown["statistics", "dropped"], share, rtol=1e-5)


@pytest.mark.parametrize("router", ROUTERS)
def test_evaluation_equals_numpy(router):
    layer = mixture(router)
    expected, dropped = numpy_mixture(layer, capacity=99)
    y, sown = run(layer, training=False)
    np.testing.assert_allclose(y, expected, atol=1e-4)
    assert sown["statistics", "dropped"] == dropped == 0
    assert not [name for name in sown if name[0] == "losses"]


@pytest.mark.parametrize("router", ROUTERS)
def test_dispatches_agree_where_nothing_drops(router):
    """In outputs and gradients, in training and in evaluation."""
    x = ops.convert_to_tensor(X)
    results = []
    for dispatch in ("dense", "gather", "einsum"):
        layer = mixture(roomy(router), dispatch=dispatch, gated=True)
        for training in (True, False)[: 1 + (dispatch == "gather")]:
            results.append(
                outputs_and_gradients(
                    lambda layer=layer, training=training: layer(
                        x, context=context(), training=training
                    ),
                    layer,
                )
            )
    (expected, gradients), *others = results
    assert np.abs(expected).max() > 1
    for y, grads in others:
        np.testing.assert_allclose(y, expected, atol=1e-4)
        for name, gradient in gradients.items():
            assert np.abs(gradient).max() > 1e-3, name
            np.testing.assert_allclose(grads[name], gradient, atol=1e-4, err_msg=name)
