"""Facts that layers get from their stack, and hand to the layers in them."""

import functools

import keras
import numpy as np
import pytest

from remixer_tf.errors import UserError
from remixer_tf.layers import (
    GatedMLP,
    LengthMixing,
    RelativePositionBias,
    RemixerBlock,
    SelfAttention,
    SpatialGatingUnit,
    Sublayer,
)
from remixer_tf.layers.facts import StackFacts
from remixer_tf.models import TransformerStack


class OwnRemixer(RemixerBlock):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.mixing = LengthMixing(softmax=True, name="mixing")


class OwnGate(GatedMLP):
    def __init__(self, **kwargs):
        super().__init__(8, **kwargs)
        self.gating = SpatialGatingUnit(name="gating")


class OwnBias(SelfAttention):
    def __init__(self, **kwargs):
        super().__init__(2, 4, relative_bias=True, **kwargs)
        self.position_bias = RelativePositionBias(2, name="position_bias")


@pytest.mark.parametrize(
    "make",
    [RemixerBlock, functools.partial(GatedMLP, 8), OwnRemixer, OwnGate, OwnBias],
)
@pytest.mark.parametrize("late", [False, True])
def test_parts_are_told_before_they_are_built(make, late):
    layer = make() if late else make(causal=True, max_length=8)
    layer.causal, layer.max_length = True, 8
    layer.build((None, None, 4))
    told = [x for x in layer._flatten_layers() if hasattr(x, "told_by_stack")]
    told = [part for part in told if part.built]  # The others were replaced.
    assert len(told) > 1
    for part in told:
        for name in part.told_by_stack:
            assert getattr(part, name) == getattr(layer.stack_facts, name)


def test_layers_that_wait_for_join_stack_are_refused():
    class Joins(Sublayer):
        def join_stack(self, causal, max_length):
            super().join_stack(causal, max_length)

    class Calls(Sublayer):
        def build(self, input_shape):
            self.join_stack(True, 8)

    with pytest.raises(UserError, match=r"Joins.join_stack: .* self.stack_facts.tell"):
        TransformerStack({"own": Joins}, 1)
    with pytest.raises(UserError, match=r"^Calls.join_stack: a stack calls no"):
        Calls().build((None, None, 4))


def test_a_layer_of_keras_is_told():
    class Plain(keras.layers.Layer):
        told_by_stack = ("max_length",)
        max_length = None

    layer = Plain()
    StackFacts(True, 8).tell(layer)
    assert layer.max_length == 8


def test_facts_are_checked():
    with pytest.raises(UserError, match="^causal must be True or False"):
        StackFacts("no")
    with pytest.raises(UserError, match="^max_length must be an integer of at least 1"):
        StackFacts(True, 0)
    assert RemixerBlock(causal=np.True_).get_config()["causal"] is True
    stack = TransformerStack({"a": functools.partial(RemixerBlock)}, 1, causal=np.True_)
    assert stack.causal is True and stack.get_config()["causal"] is True
