"""Small mixtures of experts, for their tests."""

import functools

import numpy as np
from keras import ops

from remixer_tf.layers import (
    BaseRouter,
    Context,
    GShardRouter,
    HashRouter,
    MoE,
    SwitchRouter,
    capture,
)
from tests.compiled import compiled
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
    "gshard": functools.partial(GShardRouter, second_threshold=0, capacity_factor=0.1),
    "base": BaseRouter,
    "hash": functools.partial(HashRouter, vocab_size=VOCAB_SIZE, capacity_factor=0.1),
}


def set_move(monkeypatch, move):
    """Has tokens moved by "gather", or by "exchange" as on a mesh, see `dispatch`."""
    monkeypatch.setattr(
        "remixer_tf.layers.mixture.is_shared", lambda: move == "exchange"
    )


def by_every_expert(layer, x):
    """A gated mixture that drops nothing, computed by every expert."""
    fields = context()
    routing = layer.router(x, tokens=fields.tokens, token_mask=fields.token_mask)
    wi_0, wi_1, wo = (ops.convert_to_tensor(w) for w in [*layer.wi, layer.wo])
    hidden = layer.act(ops.einsum("gtd,edf->egtf", x, wi_0))
    hidden *= ops.einsum("gtd,edf->egtf", x, wi_1)
    y = ops.einsum("egtf,efd->egtd", hidden, wo)
    is_expert = ops.one_hot(routing.experts, E, dtype="float32")
    gates = ops.sum(routing.gates[..., None] * is_expert, axis=2)
    gates *= ops.cast(fields.token_mask, "float32")[..., None]
    return ops.einsum("gte,egtd->gtd", gates, y)


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
    """A router under which nothing is dropped, in groups of any size."""
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
