"""The stack's stochastic depth, positions and input norm."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import (
    Affine,
    Context,
    DecodeState,
    FeedForward,
    LayerNorm,
    LengthMixing,
    PositionEmbedding,
    PositionWise,
    RelativePositionBias,
    RemixerBlock,
    RMSNorm,
    SelfAttention,
    Sublayer,
    TokenMixingMLP,
)
from remixer_tf.models import (
    Block,
    LayerScaleBlock,
    PostNormBlock,
    TransformerStack,
)
from remixer_tf.models.stack import survival_by_layer
from tests.compiled import compiled


class Ones(PositionWise):
    def call(self, x, context, training=False):
        return ops.ones_like(x)


def returns_none(self, batch_size, max_length, context):
    return None


def at(step, length=4):
    """A `DecodeState`."""
    keys = ops.arange(length, dtype="int32")
    return DecodeState(ops.convert_to_tensor(step, "int32"), keys)


def own_init(self, name, dtype):
    pass


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"__init__": lambda self, gain=1: None}, ["Own must take name", "**kwargs"]),
        ({"__init__": own_init}, ["Own does not call Keras'", "super().__init__("]),
        ({"call": lambda self, x: x}, ["Own.call must take a context", "def call("]),
        ({"init_cache": returns_none}, ["Own.init_cache returned None", "{}"]),
    ],
)
def test_a_sublayer_of_ones_own_that_is_written_wrongly(body, words):
    own = type("Own", (Ones,), body)
    with pytest.raises(ValueError) as error:
        stack = TransformerStack({"own": own}, num_layers=1, name="stack")
        stack.init_cache(1, 2, Context())
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_survival_by_layer():
    np.testing.assert_allclose(survival_by_layer(0.8, 3), [1, 0.9, 0.8])
    np.testing.assert_allclose(survival_by_layer(0.8, 1), [0.8])
    assert survival_by_layer(1.0, 4) == [1.0] * 4
    for probability in (0.0, 1.5):
        with pytest.raises(ValueError, match=f"survival_probability={probability}"):
            survival_by_layer(probability, 3)


def test_a_branch_is_dropped_whole_per_example_and_keeps_its_mean():
    block = Block(
        Ones(name="ones"), RMSNorm(name="norm"), survival_probability=0.8, name="block"
    )
    x = np.zeros((4000, 2, 3), "float32")
    y = np.array(block(x, context=Context(), training=True))
    first = y[:, 0, 0]
    np.testing.assert_array_equal(y, np.broadcast_to(first[:, None, None], y.shape))
    assert set(np.unique(first)) == {0.0, np.float32(1 / 0.8)}
    assert abs(first.mean() - 1) < 0.03
    np.testing.assert_array_equal(np.array(block(x, context=Context())), 1)


def test_the_schedule_reaches_the_blocks_and_states_have_stable_paths():
    make = functools.partial(
        TransformerStack, {"a": Ones, "b": Ones}, num_layers=3, name="stack"
    )
    stack = make(survival_probability=0.7)
    stack.build((None, None, 4))
    rates = [block.stochastic_depth.rate for block in stack.blocks]
    np.testing.assert_allclose(rates, [0, 0, 0.15, 0.15, 0.3, 0.3])
    states = [v.path for v in stack.non_trainable_variables]
    assert states == [
        f"stack/layer_{layer}_{name}/stochastic_depth/seed_generator/"
        "seed_generator_state"
        for layer in (1, 2)
        for name in "ab"
    ]
    without = make()
    without.build((None, None, 4))
    assert not without.non_trainable_variables


def test_layers_may_differ():
    """A list, one dictionary a layer, and a function of the layer's number."""
    attention = functools.partial(SelfAttention, num_heads=2, d_kv=3)
    dense = {"feed_forward": functools.partial(FeedForward, d_ff=5)}
    mixed = {"attention": attention, **dense}
    stacks = [
        TransformerStack(sublayers, num_layers=3, causal=True, name="stack")
        for sublayers in ([dense, dense, mixed], lambda i: mixed if i == 2 else dense)
    ]
    names = ["layer_0_feed_forward", "layer_1_feed_forward"]
    names += ["layer_2_attention", "layer_2_feed_forward"]
    x = np.random.default_rng(0).normal(size=(2, 4, 6)).astype("float32")
    for stack in stacks:
        stack.build(x.shape)
        assert [block.name for block in stack.blocks] == names
    stacks[1].set_weights(stacks[0].get_weights())
    whole, again = (stack(x, context=Context())[0] for stack in stacks)
    np.testing.assert_array_equal(np.array(whole), np.array(again))
    # The attention alone lets a token change what a later one gives.
    other = np.concatenate([x[:, :1] + [1, 2, 0, 0, 0, 0], x[:, 1:]], axis=1)
    changed, _ = stacks[0](other.astype("float32"), context=Context())
    assert np.abs(np.array(changed - whole)[:, 3]).max() > 1e-4
    cache = stacks[0].init_cache(2, 4, Context())
    assert [name for name, value in cache.items() if value] == ["layer_2_attention"]
    for t in range(4):
        y, cache = stacks[0](x[:, t : t + 1], Context(), cache, at(t))
        np.testing.assert_allclose(np.array(y)[:, 0], np.array(whole)[:, t], atol=1e-5)


def two_layers_in_one(causal=None, **mixing):
    """A class whose `causal` is given, and that holds a `LengthMixing`."""

    class Own(Sublayer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.mixing = LengthMixing(name="mixing", dtype=self.dtype_policy, **mixing)

        def build(self, input_shape):
            self.mixing.build(input_shape)

        def call(self, x, context, training=False):
            return self.mixing(x, context=context)

    Own.causal = causal
    return {"own": Own}


@pytest.mark.parametrize("causal", [False, True])
def test_a_stack_tells_its_layers_and_theirs_what_they_have_in_common(causal):
    stack = TransformerStack(
        {
            "attention": functools.partial(SelfAttention, 2, 3, relative_bias=True),
            "remixer": RemixerBlock,
            **two_layers_in_one(),
        },
        num_layers=1,
        position_bias=functools.partial(RelativePositionBias, 2),
        positions=PositionEmbedding,
        causal=causal,
        max_length=5,
    )
    stack.build((None, None, 6))
    attention, remixer, own = (block.sublayer for block in stack.blocks)
    for layer in (attention, remixer, remixer.mixing, own, own.mixing):
        assert (layer.causal, layer.max_length) == (causal, 5)
    assert stack.position_bias.bidirectional == (not causal)
    assert attention.position_bias.bidirectional == (not causal)
    assert stack.positions.embeddings.shape == (5, 6)


def test_layers_made_in_build_do_not_leak():
    class Own(Sublayer):
        causal = None

        def build(self, input_shape):
            self.attention = SelfAttention(2, 3, name="attention")
            self.attention.build(input_shape)
            self.mixing = LengthMixing(name="mixing")
            self.stack_facts.tell(self.mixing)  # It builds a matrix of max_length.
            self.mixing.build(input_shape)

        def call(self, x, context, training=False):
            return self.attention(x, context=context)

    stack = TransformerStack({"own": Own}, num_layers=1, causal=True, max_length=5)
    stack.build((None, None, 6))
    own = stack.blocks[0].sublayer
    assert own.attention.causal is own.mixing.causal is True
    assert own.mixing.mixing_matrix.shape == (1, 5, 5)


@pytest.mark.parametrize(
    ("causal", "sublayers", "words"),
    [
        (True, two_layers_in_one(causal=False), "layer_0_own'.* Own does not say"),
        (True, {"a": keras.layers.Identity}, "must take a context"),
        (True, two_layers_in_one(), None),
        (True, two_layers_in_one(causal=True), None),
        (False, two_layers_in_one(causal=True), None),
        (True, two_layers_in_one(**{"max_length": 4}), "max_length = 4 contradicts"),
        (
            True,
            {"mixing": functools.partial(LengthMixing, causal=False)},
            "'decoder/layer_0_mixing': LengthMixing.causal = False contradicts .* True",
        ),
        (
            False,
            {"mixing": functools.partial(LengthMixing, causal=True)},
            "LengthMixing.causal = True contradicts .* False. Leave Len",
        ),
        (True, {"mlp": functools.partial(TokenMixingMLP, 3)}, "MLP does not say"),
    ],
)
def test_what_contradicts_a_stack(causal, sublayers, words):
    def make():
        TransformerStack(
            sublayers, num_layers=1, causal=causal, max_length=5, name="decoder"
        )

    if words is None:
        make()
    else:
        with pytest.raises(ValueError, match=words):
            make()


@pytest.mark.parametrize("layer", [LengthMixing, RemixerBlock, PositionEmbedding])
def test_a_layer_that_needs_the_longest_sequence_says_so(layer):
    is_position = layer is PositionEmbedding
    stack = TransformerStack(
        {"ones": Ones} if is_position else {"mixing": layer},
        num_layers=1,
        positions=layer if is_position else None,
        name="stack",
    )
    with pytest.raises(ValueError, match="'stack/.*TransformerStack.max_length = %MAX"):
        stack.build((None, None, 4))


@pytest.mark.parametrize("count", [2, 4])
def test_a_list_of_another_length_is_refused(count):
    with pytest.raises(ValueError, match=f"a list of {count} for num_layers=3"):
        TransformerStack([{"ones": Ones}] * count, num_layers=3)


def test_positions_then_input_norm_then_the_layers():
    stack = TransformerStack(
        {"ones": Ones},
        num_layers=1,
        norm=LayerNorm,
        positions=PositionEmbedding,
        max_length=5,
        input_norm=True,
        name="stack",
    )
    x = np.random.default_rng(0).normal(size=(2, 4, 6)).astype("float32")
    stack.build(x.shape)
    table = ops.convert_to_numpy(stack.positions.embeddings)
    assert table.shape == (5, 6)

    def norm(x):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)

    expected = norm(norm(x + table[:4]) + 1)
    y, _ = stack(x, context=Context())
    np.testing.assert_allclose(np.array(y), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_positions_while_decoding(dtype):
    stack = TransformerStack(
        {"ones": Ones},
        num_layers=1,
        positions=PositionEmbedding,
        max_length=4,
        dtype=dtype,
        name="stack",
    )
    x = np.random.default_rng(0).normal(size=(2, 4, 6)).astype("float32")
    whole, _ = stack(x, context=Context())
    assert keras.backend.standardize_dtype(whole.dtype) == dtype.split("_")[-1]
    cache = stack.init_cache(2, 4, Context())
    for t in range(4):
        y, cache = stack(x[:, t : t + 1], Context(), cache, at(t))
        np.testing.assert_allclose(
            np.array(ops.cast(y, "float32"))[:, 0],
            np.array(ops.cast(whole, "float32"))[:, t],
            atol=1e-5 if dtype == "float32" else 0.02,
        )


def test_layer_scale():
    """x + scale * sublayer(norm(x)), and the scale starts as it is said."""
    block = functools.partial(LayerScaleBlock, initial_scale=0.5)
    stack = TransformerStack(
        {"ones": Ones}, 2, norm=Affine, block=block, final_norm=False, name="stack"
    )
    x = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    stack.build(x.shape)
    scales = [v for v in stack.trainable_variables if v.path.endswith("ones/scale")]
    assert [v.numpy().tolist() for v in scales] == [[0.5] * 3] * 2
    scales[1].assign([1.0, 2.0, 3.0])
    y, _ = stack(x, context=Context())
    np.testing.assert_allclose(y, x + 0.5 + np.array([1.0, 2.0, 3.0]), rtol=1e-6)


def test_post_norm():
    """norm(x + sublayer(x)), whole and step by step, and no norm after the last."""
    stack = TransformerStack(
        {"mixing": LengthMixing, "ones": Ones},
        num_layers=2,
        causal=True,
        max_length=4,
        norm=LayerNorm,
        block=PostNormBlock,
        final_norm=False,
        name="stack",
    )
    x = np.random.default_rng(0).normal(size=(2, 4, 6)).astype("float32")
    stack.build(x.shape)
    assert not [v.path for v in stack.variables if "final_norm" in v.path]

    def norm(x):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)

    expected = x
    for layer in (0, 1):
        matrix = np.array(stack.blocks[2 * layer].sublayer.matrix(4))[0]
        expected = norm(norm(expected + matrix @ expected) + 1)
    whole = np.array(compiled(stack)(x, context=Context())[0])
    np.testing.assert_allclose(whole, expected, atol=1e-5)
    cache = stack.init_cache(2, 4, Context())
    for t in range(4):
        y, cache = stack(x[:, t : t + 1], Context(), cache, at(t))
        np.testing.assert_allclose(np.array(y)[:, 0], whole[:, t], atol=1e-5)
