"""One program for all layers computes what the layers compute one by one."""

import functools

import keras
import numpy as np
import pytest

from remixer_tf.errors import UserError
from remixer_tf.layers import (
    Context,
    GatedFeedForward,
    MoE,
    PositionWise,
    Sublayer,
    SwitchRouter,
    capture,
    sow,
)
from remixer_tf.models import DecoderOnly
from remixer_tf.models.adapters import Lora, adapt
from remixer_tf.models.stack import TransformerStack
from tests.engines.one_device import assert_same_training, make_step
from tests.models.tiny import VOCAB_SIZE, tiny_batch, tiny_model

ON_JAX = keras.backend.backend() == "jax"
on_jax = pytest.mark.skipif(not ON_JAX, reason="scan is for JAX")


class Adding(Sublayer):
    """Gives Keras a loss, and has a state that training changes."""

    causal = True

    def build(self, input_shape):
        shape = input_shape[-1:]
        self.scale = self.add_weight(name="scale", shape=shape, axes=(None,))
        self.calls = self.add_weight(
            name="calls", shape=(), axes=(), initializer="zeros", trainable=False
        )

    def call(self, x, context, training=False):
        self.calls.assign(self.calls + 1)
        self.add_loss(keras.ops.mean(keras.ops.abs(x)))
        return x * self.scale


def experts():
    """Layers with dropout, jitter, losses and statistics."""
    router = functools.partial(SwitchRouter, capacity_factor=0.5, jitter=0.1)
    mixture = functools.partial(MoE, 4, 12, router, group_size=14)
    stack = functools.partial(
        TransformerStack, {"experts": mixture}, num_layers=3, dropout_rate=0.2
    )
    return DecoderOnly(stack, VOCAB_SIZE, d_model=8)


def adding():
    stack = functools.partial(TransformerStack, {"adding": Adding}, num_layers=3)
    return DecoderOnly(stack, VOCAB_SIZE, d_model=8)


def of_kind(kind, **options):
    return lambda: tiny_model(kind, dropout_rate=0.2, num_layers=3, **options)


# name: model, remat
MODELS = {
    "experts": (experts, None),
    "add_loss": (adding, None),
    "t5_1_1, remat": (of_kind("t5_1_1"), "cheap"),
    "remixer": (of_kind("remixer"), None),
}


DEAR = "remixer", "t5_1_1, remat"


def train(name, scan):
    """Returns the sums of two steps in one call, and the model after them."""
    make, remat = MODELS[name]
    keras.utils.set_random_seed(1)
    model = make()
    if not model.built:
        model.build()
    model.build = lambda: None  # It is built.
    batch = {k: np.stack([v, v]) for k, v in tiny_batch(4).items()}
    if isinstance(model, DecoderOnly):
        batch = {k: v for k, v in batch.items() if "encoder" not in k}
    for stack in (getattr(model, x, None) for x in ("encoder", "decoder")):
        if stack is not None:
            stack.remat, stack.scan = remat, scan
    step = make_step(model, keras.optimizers.SGD(0.1))
    return {k: np.array(v) for k, v in step(batch).items()}, model


@on_jax
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slower] * (n in DEAR)) for n in MODELS],
)
def test_sums_and_variables_are_those_without(name):
    """Dropout's states too, so the masks are equal."""
    assert_same_training(*(train(name, scan) for scan in (True, False)))


@on_jax
def test_weights_of_float32_layers_are_not_rounded():
    """In bfloat16, a layer of float32 reads its weights as they are."""

    class Scale(PositionWise):
        def __init__(self, **kwargs):
            super().__init__(**{**kwargs, "dtype": "float32"})

        def build(self, input_shape):
            scale = keras.initializers.Constant(1 + 2**-12)  # In bfloat16 it is 1.
            self.scale = self.add_weight(
                name="scale", shape=(), axes=(), initializer=scale
            )

        def call(self, x, context, training=False):
            sow(self, "statistics", "scale", self.scale * 1.0)
            return x

    stack = TransformerStack({"f": Scale}, 2, scan=True, dtype="mixed_bfloat16")
    stack.build([2, 3, 8])
    seen = []
    with capture("statistics", lambda layer, name, value: seen.append(float(value))):
        stack(np.ones([2, 3, 8]), context=Context(), training=True)
    assert seen == [1 + 2**-12] * 2


@on_jax
def test_a_program_has_one_layer():
    """As many products in 5 layers as in 2."""
    import jax

    def products(num_layers, scan):
        feed_forward = functools.partial(GatedFeedForward, d_ff=12)
        stack = TransformerStack({"f": feed_forward}, num_layers, scan=scan)
        stack.build([2, 3, 8])
        call = functools.partial(stack, context=Context(), training=True)
        text = str(jax.make_jaxpr(lambda x: call(x)[0])(np.ones([2, 3, 8])))
        return text.count("linear[") + text.count("dot_general[")  # on CPUs, on GPUs

    assert products(5, scan=True) == products(2, scan=True)
    assert products(5, scan=False) > products(2, scan=False)


@on_jax
@pytest.mark.parametrize("layers", ["_0_.*/query$", "_0_.*/query$|_1_.*/value$"])
def test_layers_with_other_adapters_are_not_equal(layers):
    """Of the second, all have rank 8 and d_model 8: the shapes are equal."""
    model = tiny_model("t5_1_1", num_layers=2)
    adapt(model, Lora(8, layers=layers))
    model.build = lambda: None
    model.encoder.scan = model.decoder.scan = True
    batch = {k: v[None] for k, v in tiny_batch(4).items()}
    with pytest.raises(UserError, match="same adapters. Received: layer 1 is not"):
        make_step(model, keras.optimizers.SGD(0.1))(batch)


@on_jax
def test_a_stack_that_was_saved_still_has_equal_layers():
    feed_forward = functools.partial(GatedFeedForward, d_ff=12)
    stack = TransformerStack({"f": feed_forward}, num_layers=2, scan=True)
    again = TransformerStack.from_config(stack.get_config())
    assert again.scan and len(again.blocks) == 2


def test_what_has_no_equal_layers_says_so():
    one, other = (functools.partial(GatedFeedForward, d_ff=n) for n in (12, 16))
    cannot = [({"sublayers": {"f": one}}, "scan is for JAX")]
    if ON_JAX:
        cannot = [
            ({"sublayers": [{"f": one}, {"f": other}]}, "layer 1 is not layer 0"),
            (
                {"sublayers": {"f": one}, "survival_probability": 0.9},
                "another rate. Received: survival_probability=0.9",
            ),
        ]
    for options, message in cannot:
        with pytest.raises(UserError, match=message):
            TransformerStack(num_layers=2, scan=True, **options)
