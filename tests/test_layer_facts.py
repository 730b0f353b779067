"""A layer of one's own says what adapters, exports, costs and pictures know of it."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.analysis.costs import count
from remixer_tf.analysis.observe import observe
from remixer_tf.analysis.panels import draw_models
from remixer_tf.errors import UserError
from remixer_tf.layers import (
    LengthMixing,
    MixingFacts,
    MoE,
    SelfAttention,
    Sublayer,
    sow,
)
from remixer_tf.layers.base import dense
from remixer_tf.models import DecoderOnly, Lora, TransformerStack
from remixer_tf.models.adapters import adapt, adapted_layers
from remixer_tf.serving import int8

LENGTH, WIDTH = 6, 4


class Decay(Sublayer):
    """`y[t] = W sum_s 2^(s - t) x[s]`, and a weight that it does not use."""

    causal = True
    counted_as = "decay"
    lora_projections = ("out",)
    wide_inputs = ("out",)

    def build(self, input_shape):
        self.unused = self.add_weight(name="unused", shape=(2, 40), int8_axis=1)
        self.out = dense("out", input_shape, input_shape[-1], self.dtype_policy)

    def call(self, x, context, training=False):
        matrix = self.matrix(x.shape[1])
        sow(self, "intermediates", "mixing", matrix)
        return self.out(ops.einsum("hts,bsd->btd", matrix, x))

    def matrix(self, length):
        distance = ops.arange(length)[:, None] - ops.arange(length)
        return ops.where(distance >= 0, 0.5 ** ops.cast(distance, "float32"), 0.0)[None]

    def folded_constant(self, size):
        return self.matrix(LENGTH) if size == LENGTH**2 else None

    def mixing_facts(self, length):
        return MixingFacts("A", signed=False, filter=self.matrix(length)[:, -1])


STACK = functools.partial(TransformerStack, {"own": Decay}, 1, max_length=LENGTH)
MODEL = functools.partial(DecoderOnly, decoder=STACK, vocab_size=9, d_model=WIDTH)


@pytest.fixture
def model():
    model = MODEL()
    model.build()
    return model


def test_its_projections_get_adapters(model):
    adapt(model, Lora(2))
    assert [x.path.split("/")[-2:] for x in adapted_layers(model)] == [["own", "out"]]


@pytest.mark.parametrize("name", ["uot", "unused"])
def test_a_projection_that_it_lacks_is_named(name, model, monkeypatch):
    monkeypatch.setattr(Decay, "lora_projections", (name,))
    with pytest.raises(UserError, match=f"names '{name}', and layer '.*/own' has no"):
        adapt(model, Lora(2))


def test_its_weights_in_8_bits(model, monkeypatch):
    axes = int8.shared_axes(model)
    found = {path.split("/")[-1]: axis for path, axis in axes.items()}
    assert found == {"unused": 1, "kernel": -2, "embeddings": -1}
    (own,) = (x for x in model._flatten_layers() if isinstance(x, Decay))
    in_decoder = int8.matrices(model)
    own.causal = False
    kernel = own.out._kernel.numpy()
    assert kernel in int8.matrices(model).with_wide_factor
    assert kernel in in_decoder and not in_decoder.with_wide_factor
    monkeypatch.setattr(int8, "SMALLEST", LENGTH**2)
    matrix = np.array(own.matrix(LENGTH)[0])
    rows = in_decoder.rows(matrix)
    np.testing.assert_allclose(rows.integers * rows.scale, matrix, atol=0.5 / 127)
    assert in_decoder.rows(matrix.T) is None


class OwnMixing(LengthMixing):
    def build(self, input_shape):
        shape = (1, LENGTH, LENGTH)
        self.mixing_matrix = self.add_weight(name="own", shape=shape)


class OwnExperts(MoE):
    def build(self, input_shape):
        self.wi = [self.add_weight(name="into", shape=(2, 4, 8))]
        self.wo = self.add_weight(name="out_of", shape=(2, 8, 4))


def _built(**sublayers):
    stack = functools.partial(TransformerStack, sublayers, 1, max_length=LENGTH)
    model = DecoderOnly(stack, vocab_size=9, d_model=WIDTH)
    model.build()
    return model


def test_weights_that_a_subclass_makes_itself_in_8_bits():
    experts = functools.partial(OwnExperts, 2, 8)
    for part, expected in (
        (OwnMixing, {"own": -1}),
        (functools.partial(OwnMixing, toeplitz=True), {}),
        (experts, {"into": -2, "out_of": -2}),
    ):
        axes = int8.shared_axes(_built(part=part))
        found = {path.split("/")[-1]: axis for path, axis in axes.items()}
        assert found == {"embeddings": -1, **expected}


class ValueAlone(SelfAttention):
    def build(self, input_shape):
        width = input_shape[-1]
        self.value = dense("value", input_shape, width, self.dtype_policy)

    def call(self, x, context, training=False):
        return self.value(x)


def test_a_subclass_may_lack_a_projection_that_it_inherits(monkeypatch):
    model = _built(part=functools.partial(ValueAlone, 2, 2))
    with monkeypatch.context() as patch:
        names = ("query", "value")
        patch.setattr(ValueAlone, "lora_projections", names, raising=False)
        with pytest.raises(UserError, match="names 'query', and layer '.*/part' has"):
            adapt(model, Lora(2))
    adapt(model, Lora(2))
    (adapted,) = adapted_layers(model)
    assert adapted.path.endswith("/part/value")


class Holder(Sublayer):
    """Holds a part, and sows a matrix as the part does."""

    causal = True
    times = 1

    def __init__(self, name_of_part="mixing", kind=None, **kwargs):
        super().__init__(**kwargs)
        self.part = Decay(name=name_of_part)
        self.part.counted_as = kind

    def build(self, input_shape):
        self.part.build(input_shape)

    def call(self, x, context, training=False):
        sow(self, "intermediates", "mixing", self.part.matrix(x.shape[1]))
        for _ in range(self.times):
            x = self.part(x, context=context)
        return x


class Repeating(Holder):
    times = 2


def _titles(part):
    tokens = np.ones((1, LENGTH), "int32")
    batch = dict.fromkeys(("decoder_input_tokens", "decoder_target_tokens"), tokens)
    observed = observe(_built(own=part), batch)
    figures = draw_models({"": (observed, None)}, "own").values()
    titles = [axis.get_title() for figure in figures for axis in figure.axes]
    return [title.split("\n")[1] for title in titles if title]


def test_no_matrix_is_left_out_of_pictures():
    part = ["own/mixing: A", "own/mixing: filter"]
    assert _titles(Holder) == ["own: W", *part]
    again = ["own/mixing: A (2)", "own/mixing: filter (2)"]
    assert _titles(Repeating) == ["own: W", *part, *again]


def test_parts_of_one_name_have_their_own_costs():
    parts = {
        "a": functools.partial(Holder, "part", "mine"),
        "b": functools.partial(Holder, "part"),
    }
    stack = functools.partial(TransformerStack, parts, 1, max_length=LENGTH)
    model = functools.partial(DecoderOnly, stack, vocab_size=9, d_model=WIDTH)
    lengths = {"targets": LENGTH}
    found = count(model, keras.optimizers.SGD, batch_size=2, feature_lengths=lengths)
    own = {
        kind: (part.parameters, part.matmul_flops)
        for (_, kind), part in found.parts.items()
    }
    products = 2 * 2 * (LENGTH**2 * WIDTH + LENGTH * WIDTH**2)
    parameters = 2 * 40 + WIDTH**2
    assert own["a: mine"] == (parameters, products)
    assert own["b"] == (parameters + WIDTH, products)  # with the block's norm
    assert "b: mine" not in own


def test_its_costs_have_a_kind():
    lengths = {"targets": LENGTH}
    found = count(MODEL, keras.optimizers.SGD, batch_size=2, feature_lengths=lengths)
    own = found.parts["decoder", "own: decay"]
    assert own.parameters == 2 * 40 + WIDTH**2
    products = 2 * 2 * (LENGTH**2 * WIDTH + LENGTH * WIDTH**2)
    assert own.matmul_flops == products


def test_its_matrix_is_drawn_with_a_filter(model):
    tokens = np.ones((1, LENGTH), "int32")
    batch = dict.fromkeys(("decoder_input_tokens", "decoder_target_tokens"), tokens)
    (figure,) = draw_models({"": (observe(model, batch), None)}, "own").values()
    panels = {axis.get_title(): axis for axis in figure.axes if axis.get_title()}
    assert [*panels] == ["layer 0\nown: A", "layer 0\nown: filter"]
    line = panels["layer 0\nown: filter"].lines[0]
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1 - LENGTH, 1))
    np.testing.assert_allclose(line.get_ydata(), 0.5 ** np.arange(LENGTH)[::-1])
