"""Names of axes: they are given where a variable is made."""

import re

import keras
import pytest

from remixer_tf.layers import PositionWise
from remixer_tf.layers.axes import (
    DIMENSIONS,
    NamedAxes,
    axes_of,
    build_named,
    make_named,
)
from remixer_tf.layers.base import dense


class Mine(PositionWise):
    """A layer of one's own: one weight with names, one without."""

    def __init__(self, axes=("d_model", "d_ff"), **kwargs):
        super().__init__(**kwargs)
        self.axes = axes

    def build(self, input_shape):
        shape = (input_shape[-1], 8)
        self.named = self.add_weight(name="named", shape=shape, axes=self.axes)
        self.unnamed = self.add_weight(name="unnamed", shape=shape)


def built(layer, channels=4):
    layer.build((None, None, channels))
    return layer


def test_a_weight_has_the_names_of_its_axes_or_none():
    layer = built(Mine())
    assert axes_of(layer.named) == ("d_model", "d_ff")
    assert axes_of(layer.unnamed) == (None, None)
    assert axes_of(keras.Variable(1.0)) == ()


@pytest.mark.parametrize(
    "axes, message",
    [
        (("d_model", "d_fff"), "names among batch, d_model, .*'d_fff'.* for .*/named"),
        ("d_model", "a tuple of names .* axes='d_model'"),
        (("d_model",), r"for each axis. .*'d_model'.* for mine/named, of shape .4, 8."),
        ((), "of shape .4, 8."),
    ],
)
def test_wrong_names_are_refused_where_the_weight_is_made(axes, message):
    with pytest.raises(ValueError, match=message):
        built(Mine(axes, name="mine"))


def test_a_name_of_ones_own(monkeypatch):
    monkeypatch.setitem(DIMENSIONS, "rank", "the inner side of a low-rank product")
    assert axes_of(built(Mine(("d_model", "rank"))).named) == ("d_model", "rank")


def test_a_projections_bias_has_the_last_name_but_for_d_model():
    for axes, bias in [
        (("d_model", "d_ff"), ("d_ff",)),
        (("d_ff", "d_model"), (None,)),
        (("d_model", None), (None,)),
    ]:
        layer = dense("x", (None, 4), 8, "float32", axes=axes, use_bias=True)
        assert axes_of(layer.kernel) == axes and axes_of(layer.bias) == bias
    assert axes_of(dense("x", (None, 4), 8, "float32").kernel) == (None, None)
    with pytest.raises(ValueError, match="for each axis. .* for x/kernel"):
        dense("x", (None, 4), 8, "float32", axes=("d_ff",), use_bias=True)


def test_a_layer_of_keras_is_built_with_names():
    layer = keras.layers.Dense(8, name="x")
    build_named(layer, (None, 4), kernel=("d_model", "d_ff"))
    assert axes_of(layer.kernel) == ("d_model", "d_ff")
    assert axes_of(layer.bias) == (None,)
    with pytest.raises(ValueError, match="'x' has no weight 'krnel'.*: kernel, bias"):
        build_named(keras.layers.Dense(8, name="x"), (None, 4), krnel=("d_ff", None))
    with pytest.raises(ValueError, match="'nothing'.* for x/kernel"):
        build_named(
            keras.layers.Dense(8, name="x"), (None, 4), kernel=("nothing", None)
        )


@pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="devices share variables on JAX"
)
def test_the_names_are_known_when_a_variable_is_placed():
    """So that no device ever holds all of a variable that is split."""
    seen = {}

    class Recorder:
        def get_variable_layout(self, variable):
            seen[re.sub("variable.*", "variable", variable.name)] = axes_of(variable)

        def get_tensor_layout(self, path):
            return None

    class Norm(NamedAxes, keras.layers.LayerNormalization):
        def add_weight(self, **kwargs):
            return super().add_weight(axes=("d_model",), **kwargs)

    class WithoutName(PositionWise):
        def build(self, input_shape):
            self.kernel = self.add_weight(shape=(4, 8), axes=(None, "d_ff"))

    keras.distribution.set_distribution(Recorder())
    try:
        built(Mine())
        built(Norm())
        built(WithoutName())
        embedding = keras.layers.Embedding(6, 4)
        build_named(embedding, (None, None), embeddings=("vocab", "d_model"))
        optimizer = keras.optimizers.SGD()
        make_named(optimizer.add_variable, ("heads",), (3,), name="row")
    finally:
        keras.distribution.set_distribution(None)
    del seen["iteration"], seen["learning_rate"]
    assert seen == {
        "named": ("d_model", "d_ff"),
        "unnamed": (None, None),
        "gamma": ("d_model",),
        "beta": ("d_model",),
        "variable": (None, "d_ff"),
        "embeddings": ("vocab", "d_model"),
        "row": ("heads",),
    }
