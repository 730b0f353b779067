"""Language models with mixtures of experts: which see the future, and when.

Changing a token may change no logits before it. Evaluation, decoding and packing are in
test_decoder_only.py, for every model that is causal there.
"""

import functools

import numpy as np
import pytest

from remixer_tf.decoding import score
from remixer_tf.layers import (
    BaseRouter,
    GShardRouter,
    HashRouter,
    SwitchRouter,
    capture,
)
from remixer_tf.models import DecoderOnly
from remixer_tf.objectives.batches import scorable
from tests.compiled import compiled, in_graph, slow_on_jax
from tests.layers.harness import randomize
from tests.models.tiny import (
    EACH_MIXTURE,
    VOCAB_SIZE,
    check_rows_stand_alone,
    tiny_decoder,
    tiny_mixture,
)

LENGTH = 12
EVALUATION = pytest.param(False, marks=pytest.mark.slow)


def changes_before(model, training):
    """The outputs that change before a token that changes, and the share dropped.

    The token is in the last of two rows. Before it are the first row and the last one's
    tokens to its left: in training, experts that are full turn away what comes late in
    the batch.

    Returns:
        of each place but the first the largest change of logits before it, and the
        share of choices that no expert took.
    """

    def run(batch):
        seen = {}
        with capture("statistics", lambda layer, name, x: seen.update({name: x})):
            logits = model(batch, training=training)
        return logits, seen["dropped"]

    run = in_graph(run, model)
    rng = np.random.default_rng(0)
    tokens = rng.integers(2, VOCAB_SIZE, (2, LENGTH)).astype("int32")
    targets = np.full_like(tokens, 2)  # None is padding.

    def logits(tokens):
        batch = {"decoder_input_tokens": tokens, "decoder_target_tokens": targets}
        logits, dropped = run(batch)
        return np.array(logits), float(dropped)

    before, dropped = logits(tokens)
    changes = []
    for t in range(1, LENGTH):
        changed = tokens.copy()
        changed[1, t] = changed[1, t] % (VOCAB_SIZE - 2) + 1
        change = np.abs(logits(changed)[0] - before)
        assert change[1, t].max() > 1e-4
        changes.append(max(change[0].max(), change[1, :t].max()))
    return np.array(changes), dropped


def mixture(kind, **kwargs):
    stack = tiny_mixture(kind, num_experts=6, **kwargs)
    model = DecoderOnly(stack, VOCAB_SIZE, 8)
    model.build()
    randomize(model, seed=2)
    return model


# Without random numbers.
SWITCH = functools.partial(SwitchRouter, jitter=0.0)
GSHARD = functools.partial(GShardRouter, second_threshold=0)
HASH = functools.partial(HashRouter, vocab_size=VOCAB_SIZE, capacity_factor=1.25)


ROUTERS = {"switch": SWITCH, "hash": HASH, "smlp": SWITCH}


@pytest.mark.parametrize("kind", slow_on_jax(ROUTERS, but=["smlp"]))
def test_causal_in_training(kind):
    """Switch, hash, and sMLP's deterministic spatial experts, where much is dropped."""
    changes, dropped = changes_before(mixture(kind, router=ROUTERS[kind]), True)
    assert changes.max() < 1e-5 and dropped > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("kind, router", [("gshard", GSHARD), ("base", BaseRouter)])
def test_leaks_in_training(kind, router):
    """The second choices of GShard are served last, and BASE assigns all at once."""
    assert changes_before(mixture(kind, router=router), True)[0].max() > 1e-2


def test_a_router_that_is_not_causal_is_not_for_decoders():
    class NotCausalRouter(SwitchRouter):
        causal = False

    words = "decoder/layer_1_token_experts.*NotCausalRouter.*another router"
    with pytest.raises(ValueError, match=words):
        mixture("switch", router=NotCausalRouter)


@pytest.mark.slower
@pytest.mark.parametrize("training", [*slow_on_jax([True], but=[]), EVALUATION])
def test_spatial_experts(training):
    """Partial routing is causal from the first fifth of a row on, naive is not."""
    changes = {
        routing: changes_before(
            mixture("smlp", max_length=LENGTH, routing=routing, router=SWITCH),
            training,
        )[0]
        for routing in ("partial", "naive")
    }
    assert changes["naive"].min() > 1e-4
    # The first 3 of 12 positions decide; the change of t = 3 is the third number.
    assert changes["partial"][:2].max() > 1e-4
    assert changes["partial"][2:].max() < 1e-5


def test_a_model_says_which_positions_it_may_score():
    """Yu et al. 2022, partial prediction: the first 20% decide and are not scored."""
    batch = {"decoder_loss_weights": np.ones((2, 24), "int32")}
    batch["decoder_loss_weights"][1, 20:] = 0
    models = [
        DecoderOnly(tiny_mixture("smlp", routing=routing), VOCAB_SIZE, 8)
        for routing in ("deterministic", "partial")
    ]
    assert scorable(batch, models[0]) is batch
    model = models[1]  # ceil(0.2 * 24) = 5
    weights = np.array(scorable(batch, model)["decoder_loss_weights"])
    np.testing.assert_array_equal(
        weights, [[0] * 5 + [1] * 19, [0] * 5 + [1] * 15 + [0] * 4]
    )
    with pytest.raises(ValueError, match="first 5 positions.*rows of 5 tokens"):
        scorable({"decoder_loss_weights": np.ones((2, 5), "int32")}, model)
    with pytest.raises(ValueError, match="cannot score whole texts: the first 5"):
        score(model, batch)


@pytest.mark.parametrize("kind", EACH_MIXTURE)
def test_rows_stand_alone(kind):
    """In evaluation, whatever else is in the batch, and however much padding."""
    model = tiny_decoder(kind)
    randomize(model)
    rng = np.random.default_rng(0)
    tokens = rng.integers(2, VOCAB_SIZE, (4, LENGTH)).astype("int32")
    targets = rng.integers(2, VOCAB_SIZE, (4, LENGTH)).astype("int32")
    targets[-1, 7:] = 0
    batch = {"decoder_input_tokens": tokens, "decoder_target_tokens": targets}
    logits = check_rows_stand_alone(model, batch)
    shorter = {key: value[-1:, :8] for key, value in batch.items()}
    shorter = np.array(compiled(model)(shorter))
    np.testing.assert_allclose(shorter[0, :7], logits[-1, :7], atol=1e-4)
