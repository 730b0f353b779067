"""Rules of mixtures of experts that users rely on, some broken elsewhere."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.kernels.jitter import jitter
from remixer_tf.layers import (
    Context,
    FeedForward,
    GShardRouter,
    HashRouter,
    MoE,
    SwitchRouter,
)
from remixer_tf.layers.facts import StackFacts
from tests.compiled import compiled, outputs_and_gradients
from tests.layers.mixtures import (
    MASK,
    ROUTERS,
    TOKENS,
    VOCAB_SIZE,
    D,
    E,
    X,
    context,
    mixture,
    roomy,
    run,
    set_move,
)

# What `test_mixture` shows on both backends is the same on both here.
ON_JAX = keras.backend.backend() == "jax"
pytestmark = [pytest.mark.slow] * ON_JAX
CAUSAL = ["switch", "gshard", "base", "hash"]


class NotCausalRouter(SwitchRouter):
    causal = False


def leaks(layer, training):
    """Whether a change from token t on changes outputs before it, in any row.

    The rows form one group each, so those of all t are computed in one call.
    """
    x, tokens = np.stack([X] * 8), np.stack([TOKENS] * 8)
    for t in range(1, 8):
        x[t, :, t:] = X[::-1, t:] - 1.0
        tokens[t, :, t:] = (TOKENS[:, t:] + 7) % VOCAB_SIZE
    x, tokens = (a.reshape(-1, *a.shape[2:]) for a in (x, tokens))
    call = compiled(functools.partial(layer, training=training), layer)
    fields = {"tokens": ops.convert_to_tensor(tokens)}
    y = np.array(call(ops.convert_to_tensor(x), context=Context(**fields)))
    y = y.reshape(8, *X.shape)
    return any(np.abs(y[t] - y[0])[:, :t].max() > 1e-4 for t in range(1, 8))


@pytest.mark.parametrize("router", CAUSAL)
def test_no_token_sees_later_ones_in_evaluation(router):
    assert not leaks(mixture(router), training=False)


@pytest.mark.parametrize("router", ["switch", "hash"])
def test_switch_and_hash_are_causal_in_training(router):
    """Even where experts are full."""
    layer = mixture(router, group_size=8)
    layer.router.capacity = lambda tokens: 1
    assert run(layer)[1]["statistics", "dropped"] > 0.2
    assert not leaks(layer, training=True)


@pytest.mark.parametrize("router", ["gshard", "base"])
def test_the_leaks_that_docstrings_tell_of(router):
    layer = mixture(router, group_size=8)
    if router == "gshard":
        layer.router.capacity = lambda tokens: 2
    assert leaks(layer, training=True)
    assert not leaks(layer, training=False)
    assert "causal" in type(layer.router).__doc__


def test_a_decoder_refuses_a_router_that_is_not_causal():
    layer = mixture(NotCausalRouter)
    StackFacts(causal=False).tell(layer)
    with pytest.raises(ValueError, match="NotCausalRouter .* another router"):
        StackFacts(causal=True).tell(layer)


@pytest.mark.parametrize("move", ["gather", "exchange"])
@pytest.mark.parametrize("router", ["switch", "hash"])
def test_identical_tokens_are_dropped_but_for_the_capacity(router, move, monkeypatch):
    set_move(monkeypatch, move)
    layer = mixture(router, group_size=24)
    x = np.tile(X[:1, :1], (3, 8, 1))
    tokens = np.full_like(TOKENS, 5)
    y, sown = run(layer, x, mask=None, tokens=tokens)
    y = y.reshape(24, D)
    assert (np.abs(y[:4]) > 0).any(axis=1).all()
    np.testing.assert_array_equal(y[4:], 0)
    np.testing.assert_allclose(sown["statistics", "dropped"], 20 / 24)
    _, gradients = outputs_and_gradients(
        lambda: layer(ops.convert_to_tensor(x), context(None, tokens), training=True),
        layer,
    )
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
    assert np.abs(gradients["moe/wo"]).max() > 0


def test_hash_layers_drop_nothing_in_training():
    """They have no capacity (Roller et al. 2021): one expert may have all tokens."""
    layer = mixture(functools.partial(HashRouter, vocab_size=VOCAB_SIZE))
    tokens = np.full_like(TOKENS, 5)
    y, sown = run(layer, tokens=tokens)
    assert sown["statistics", "dropped"] == 0
    expected, _ = run(layer, training=False, tokens=tokens)
    np.testing.assert_allclose(y, expected, atol=1e-5)


@pytest.mark.parametrize("router", ROUTERS)
def test_padding_takes_no_capacity(router):
    """Rows before are padding, of tokens that would fill the experts first."""
    layer = mixture(router, group_size=24)
    x = X.copy()
    x[:2] = X[2]
    mask = np.zeros_like(MASK)
    mask[2] = 1
    tokens = np.tile(TOKENS[2:], (3, 1))
    y, sown = run(layer, x, mask=mask, tokens=tokens)
    np.testing.assert_array_equal(y[:2], 0)
    alone, sown_alone = run(layer, X[2:], mask=None, tokens=TOKENS[2:])
    np.testing.assert_allclose(y[2:], alone, atol=1e-5)
    assert sown.keys() == sown_alone.keys()
    for name, value in sown.items():
        np.testing.assert_allclose(value, sown_alone[name], atol=1e-5, err_msg=name)


@pytest.mark.parametrize("router", ROUTERS)
def test_evaluation_of_a_row_does_not_depend_on_others(router):
    layer = mixture(router)
    y, _ = run(layer, training=False)
    for row in range(3):
        real = MASK[row].sum()
        part = slice(row, row + 1), slice(0, real)
        alone, _ = run(layer, X[part], training=False, mask=None, tokens=TOKENS[part])
        np.testing.assert_allclose(alone, y[part], atol=1e-5)


@pytest.mark.parametrize(
    "batch, groups", [(3, (1, 24)), (4, (2, 16)), (5, (5, 8)), (6, (2, 24))]
)
def test_groups_are_of_equally_many_whole_rows(batch, groups):
    """So that devices which share the batch have whole groups."""
    layer = mixture("switch", group_size=24)
    x = np.arange(batch * 8).reshape(batch, 8)
    np.testing.assert_array_equal(layer._group(x), x.reshape(groups))


def test_a_row_that_is_too_long_is_cut_and_filled_up():
    """23 tokens in groups of at most 10: 8, 8 and 7."""
    layer = mixture(roomy("switch"), group_size=10)
    x, tokens = (
        value.reshape(1, 24, *value.shape[2:])[:, :23] for value in (X, TOKENS)
    )
    assert [tuple(layer._group(ops.convert_to_tensor(x)).shape)] == [(3, 8, D)]
    y, _ = run(layer, x, mask=None, tokens=tokens)
    expected, _ = run(layer, x, training=False, mask=None, tokens=tokens)
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_experts_start_as_feed_forward_layers_do():
    layer = MoE(16, 64, ROUTERS["switch"], gated=True)
    layer.build((None, None, 128))
    plain = FeedForward(64)
    plain.build((None, None, 128))
    for experts, kernel in [
        (layer.wi[1], plain.wi.kernel),
        (layer.wo, plain.wo.kernel),
    ]:
        experts, kernel = map(ops.convert_to_numpy, (experts, kernel))
        np.testing.assert_allclose(experts.std(axis=(1, 2)), kernel.std(), rtol=0.05)
        np.testing.assert_allclose(experts.max(), kernel.max(), rtol=0.1)
        assert np.abs(experts[0] - experts[1]).max() > 0.05


def test_a_top_1_gate_trains_the_router():
    layer = mixture(roomy("switch", balance_weight=0.0))
    _, gradients = outputs_and_gradients(
        lambda: layer(ops.convert_to_tensor(X), context(), training=True), layer
    )
    assert np.abs(gradients["moe/router/kernel"]).max() > 1e-2


def test_random_numbers_are_drawn_in_training_alone():
    noisy = functools.partial(SwitchRouter, jitter=0.5, capacity_factor=4.0)
    random = functools.partial(GShardRouter, capacity_factor=4.0, second_threshold=1.0)
    for router in (noisy, random):
        layer = mixture(router)
        layer.router.kernel.assign(layer.router.kernel * 0.2)
        draws = [run(layer)[0] for _ in range(2)]
        assert np.abs(draws[0] - draws[1]).max() > 1e-3
        np.testing.assert_array_equal(draws[0][MASK == 0], 0)
        calm = [run(layer, training=False)[0] for _ in range(2)]
        np.testing.assert_array_equal(*calm)
    # The second expert is kept as often as its gate says.
    _, sown = run(mixture(functools.partial(random, second_threshold=1e-9)))
    np.testing.assert_allclose(sown["statistics", "gate"], 0.5, atol=1e-6)


def test_jitter_is_uniform_and_any_two_numbers_of_it_independent():
    seed = keras.random.SeedGenerator(0)
    # Of many groups, two tokens with three features.
    draws = np.array(jitter((20_000, 2, 3), 0.3, seed)).reshape(-1, 6)
    assert 0.7 <= draws.min() < 0.701 and 1.299 < draws.max() <= 1.3
    counts, _ = np.histogram(draws, 6, (0.7, 1.3))
    np.testing.assert_allclose(counts, 20_000, rtol=0.03)
    for values in (draws, np.abs(draws - 1)):
        np.testing.assert_allclose(np.corrcoef(values.T), np.eye(6), atol=0.03)


def test_losses_equal_numpy():
    router = roomy("switch", balance_weight=0.1, z_weight=0.01)
    layer = mixture(router, group_size=24)
    _, sown = run(layer)
    x, real = X.reshape(-1, D), MASK.reshape(-1) > 0
    logits = (x @ ops.convert_to_numpy(layer.router.kernel))[real]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    share = np.bincount(logits.argmax(1), minlength=E) / len(logits)
    balance = 0.1 * E * (share * p.mean(0)).sum()
    np.testing.assert_allclose(sown["losses", "balance"], balance, rtol=1e-4)
    z = 0.01 * (np.log(np.exp(logits).sum(1)) ** 2).mean()
    np.testing.assert_allclose(sown["losses", "router_z"], z, rtol=1e-4)
    statistics = {
        "load": share,
        "unused": (share == 0).sum(),
        "dropped": 0,
        "gate": p.max(1).mean(),
        "entropy": -(p * np.log(p)).sum(1).mean(),
        "largest_logit": logits.max(),
    }
    assert {n for c, n in sown if c == "statistics"} == statistics.keys()
    for name, value in statistics.items():
        np.testing.assert_allclose(
            sown["statistics", name], value, rtol=1e-4, atol=1e-6, err_msg=name
        )


def test_groups_are_balanced_each_by_itself():
    """So the loss of two replicas is the mean of theirs, whatever their number."""
    layer = mixture(roomy("switch"), group_size=8)
    _, sown = run(layer, mask=None)
    rows = [
        run(layer, X[i : i + 1], mask=None, tokens=TOKENS[i : i + 1])[1]
        for i in range(3)
    ]
    mean = np.mean([row["losses", "balance"] for row in rows])
    np.testing.assert_allclose(sown["losses", "balance"], mean, rtol=1e-5)


def test_groups_of_padding_do_not_count_in_the_balance():
    """An empty row of a batch would make the others' loss smaller."""
    layer = mixture(roomy("switch"), group_size=8)
    mask = np.ones_like(TOKENS)
    mask[1] = 0
    _, sown = run(layer, mask=mask)
    rows = [
        run(layer, X[i : i + 1], mask=mask[i : i + 1], tokens=TOKENS[i : i + 1])[1]
        for i in (0, 2)
    ]
    mean = np.mean([row["losses", "balance"] for row in rows])
    np.testing.assert_allclose(sown["losses", "balance"], mean, rtol=1e-5)


@pytest.mark.parametrize("router", ROUTERS)
def test_bfloat16(router):
    """Routers stay float32: the same experts, and outputs close by."""
    layer = mixture(router)
    mixed = mixture(router, dtype="mixed_bfloat16")
    mixed.set_weights(layer.get_weights())
    x = np.array(ops.cast(ops.cast(X, "bfloat16"), "float32"))
    (y, sown), (y_mixed, sown_mixed) = run(layer, x), run(mixed, x)
    np.testing.assert_allclose(
        sown["statistics", "load"], sown_mixed["statistics", "load"]
    )
    np.testing.assert_allclose(y_mixed, y, atol=0.05 * np.abs(y).max())
    assert mixed.router.compute_dtype == "float32"


def test_the_hash_table_is_saved_with_the_weights():
    def layer(seed):
        return mixture(functools.partial(ROUTERS["hash"], seed=seed))

    first, second = layer(0), layer(1)
    tables = [ops.convert_to_numpy(each.router.table) for each in (first, second)]
    assert (tables[0] != tables[1]).any()
    assert set(tables[0]) == set(range(E))
    second.set_weights(first.get_weights())
    np.testing.assert_array_equal(run(second)[0], run(first)[0])


def test_without_tokens_a_hash_router_says_so():
    with pytest.raises(ValueError, match="HashRouter .* ids"):
        mixture("hash")(X, context=Context())


@pytest.mark.slower
@pytest.mark.skipif(ON_JAX, reason="there all these tests are compiled")
@pytest.mark.parametrize(
    "router",
    [pytest.param(r, marks=[pytest.mark.slow] * (r != "switch")) for r in ROUTERS],
)
def test_xla(router):
    """The same outputs and gradients, in training; evaluation compiles too."""
    import tensorflow as tf

    layer = mixture(router)

    def step(training):
        with tf.GradientTape() as tape:
            y = layer(tf.constant(X), context=context(), training=training)
            loss = tf.reduce_sum(tf.math.softsign(y))
        gradients = tape.gradient(loss, layer.trainable_variables)
        return [y, *map(tf.convert_to_tensor, gradients)]

    for training in (True, False):
        program = tf.function(functools.partial(step, training), jit_compile=True)
        for ours, expected in zip(program(), step(training), strict=True):
            np.testing.assert_allclose(ours, expected, atol=1e-4)
