"""sMLP's spatial experts against NumPy, and what they see of the future."""

import functools

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import (
    Context,
    GatedMLP,
    SparseSpatialGate,
    SpatialGatingUnit,
    sparse_gate,
)
from remixer_tf.layers.assignment import assign_balanced
from tests.compiled import compiled, in_graph, outputs_and_gradients
from tests.layers.harness import randomize
from tests.layers.test_gmlp import layer_norm, softmax

LENGTH, CHANNELS, EXPERTS = 10, 24, 3  # twelve channels are gated, four by each expert


def make(routing, max_length=LENGTH, cls=SparseSpatialGate, **kwargs):
    kwargs = {"max_length": max_length, "causal": True, "name": "gate", **kwargs}
    layer = cls(EXPERTS, routing, **kwargs)
    layer.build((None, None, CHANNELS))
    randomize(layer)
    return layer


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(2, LENGTH, CHANNELS)).astype("float32")


def test_deterministic_routing_is_a_spatial_gate_with_heads():
    layer = make("deterministic", spatial_stddev=0.1, spatial_bias_value=0.5)
    unit = SpatialGatingUnit(
        max_length=LENGTH,
        causal=True,
        num_mixing_heads=EXPERTS,
        spatial_stddev=0.1,
        spatial_bias_value=0.5,
        name="gate",
    )
    unit.build((None, None, CHANNELS))
    assert [v.path for v in layer.variables] == [v.path for v in unit.variables]
    unit.set_weights(layer.get_weights())
    z = inputs()
    np.testing.assert_array_equal(
        np.array(compiled(layer)(z, context=Context())),
        np.array(compiled(unit)(z, context=Context())),
    )


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("routing, deciding", [("partial", 2), ("naive", 10)])
@pytest.mark.parametrize("padded", [False, True])
def test_equations(routing, deciding, padded):
    layer = make(routing)
    w = {
        v.path.split("/", 1)[1]: ops.convert_to_numpy(v)
        for v in layer.trainable_weights
    }
    assert w["router"].shape == (deciding, EXPERTS)
    z = inputs()
    # A row that is shorter than what decides: padding says nothing.
    mask = np.array([[1] * LENGTH, [1] + [0] * (LENGTH - 1)], "int32")
    left, right = np.split(z, 2, axis=-1)
    right = layer_norm(right, w["norm/gamma"], w["norm/beta"])
    read = right * mask[:, :, None] if padded else right
    logits = np.einsum("btc,te->bce", read[:, :deciding], w["router"])
    # Which channels go together is the assignment's, which has tests of its own.
    everyone = ops.ones(logits.shape[:2], "int32")
    experts = np.array(assign_balanced(ops.convert_to_tensor(logits), everyone))
    expected = np.empty_like(left)
    for row in range(2):
        np.testing.assert_array_equal(np.bincount(experts[row]), [4, 4, 4])
        for channel, expert in enumerate(experts[row]):
            f = np.tril(w["mixing/mixing_matrix"][expert]) @ right[row, :, channel]
            f += w["mixing/spatial_bias"][expert]
            f *= EXPERTS * softmax(logits[row, channel])[expert]
            expected[row, :, channel] = left[row, :, channel] * f
    context = Context(token_mask=mask if padded else None)
    y = np.array(compiled(layer)(z, context=context))
    np.testing.assert_allclose(y, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("routing", ["deterministic", "partial", "naive"])
def test_a_fresh_gate_lets_its_input_through(routing):
    layer = SparseSpatialGate(EXPERTS, routing, max_length=LENGTH, causal=True)
    layer.build((None, None, CHANNELS))
    z = inputs()
    y = np.array(compiled(layer)(z, context=Context()))
    # N softmax(S) is near 1, as S is near 0.
    np.testing.assert_allclose(y, z[..., : CHANNELS // 2], rtol=0.25, atol=1e-3)


def changes_before(routing):
    """The largest change of outputs before each t when the input at t changes."""
    call = in_graph(make(routing))
    z, other = inputs(), inputs(seed=1)
    y = np.array(call(z, context=Context()))
    changes = []
    for t in range(1, LENGTH):
        changed = z.copy()
        changed[:, t] = other[:, t]
        changed = np.array(call(changed, context=Context()))
        changes.append(np.abs(changed - y)[:, :t].max())
    return np.array(changes)


@pytest.mark.slow
def test_what_leaks():
    assert changes_before("deterministic").max() < 1e-5
    assert changes_before("naive").min() > 0.01
    partial = changes_before("partial")
    # The first two positions decide: the first output depends on the second token.
    assert partial[0] > 0.01 and partial[1:].max() < 1e-5


@pytest.mark.slow_on_jax
def test_the_router_learns(monkeypatch):
    layer = make("partial")
    z = ops.convert_to_tensor(inputs())

    def differentiate():
        return outputs_and_gradients(lambda: layer(z, context=Context()), layer)[1]

    gradients = differentiate()
    assert all(np.abs(gradient).max() > 0 for gradient in gradients.values())
    assert len(gradients) == 5
    # Those that a gather has by itself, by a scatter.
    monkeypatch.setattr(
        sparse_gate, "take_rows", lambda x, index, _: ops.take(x, index, axis=0)
    )
    for name, expected in differentiate().items():
        np.testing.assert_allclose(gradients[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow_on_jax
def test_a_block_with_spatial_experts():
    gate = functools.partial(SparseSpatialGate, 3, "partial", spatial_bias_value=0.5)
    layer = GatedMLP(12, gate, causal=True, max_length=8)
    layer.build((None, None, 6))
    assert (layer.gating.num_deciding, layer.first_scorable) == (2, 2)
    assert layer.gating.mixing.causal and layer.gating.mixing.num_mixing_heads == 3
    assert (ops.convert_to_numpy(layer.gating.mixing.spatial_bias) == 0.5).all()


def test_what_is_refused():
    for unread in ({"variant": "linear"}, {"num_mixing_heads": 2}):
        with pytest.raises(ValueError, match=f"has no {next(iter(unread))}"):
            SparseSpatialGate(3, **unread)
    with pytest.raises(ValueError, match="routing='learned'"):
        SparseSpatialGate(2, "learned")
    with pytest.raises(ValueError, match="num_experts=5, d_ff=24"):
        SparseSpatialGate(5, max_length=8).build((None, None, 24))
    layer = make("partial")
    with pytest.raises(ValueError, match="first 2 positions decide.*deterministic"):
        layer.init_cache(2, LENGTH, Context())
    packed = Context(
        segment_ids=np.ones((2, LENGTH), "int32"),
        positions=np.arange(LENGTH, dtype="int32")[None].repeat(2, 0),
    )
    with pytest.raises(ValueError, match="packing off"):
        layer(inputs(), context=packed)
