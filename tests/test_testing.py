"""`check_sublayer` names what is wrong with a layer of a user's own."""

import functools

import numpy as np
import pytest
from keras import ops

from remixer_tf.layers import (
    CrossAttention,
    FeedForward,
    LengthMixing,
    PositionWise,
    SelfAttention,
    Sublayer,
)
from remixer_tf.testing import check_sublayer
from tests.training.test_own_layers import (
    IN_TRAINING,
    Forgets,
    Leaks,
    MeanInSegment,
    MeanOfAll,
    MeanSoFar,
    NoSteps,
    Statistic,
    between,
)

pytestmark = pytest.mark.quick_on_jax


class MeanWithoutSteps(MeanInSegment):
    init_cache, decode_step = Sublayer.init_cache, Sublayer.decode_step


class FillsTooMuch(MeanInSegment):
    """Its cache after a prompt holds positions that are yet to be decoded."""

    def prefill(self, x, cache, context, state):
        everything = state._replace(step=ops.convert_to_tensor(x.shape[1], "int32"))
        return super().prefill(x, cache, context, everything)


class ReadsOtherwise(MeanInSegment):
    def prefill(self, x, cache, context, state):
        y, cache = super().prefill(x, cache, context, state)
        return 2 * y, cache


class Unnamed(PositionWise):
    """The names of its weights differ from layer to layer."""

    number = 0

    def build(self, input_shape):
        Unnamed.number += 1
        self.scale = self.add_weight(name=f"scale_{self.number}", shape=(1,))

    def call(self, x, context, training=False):
        return x * self.scale


class Detached(PositionWise):
    def build(self, input_shape):
        self.scale = self.add_weight(name="scale", shape=(1,))

    def call(self, x, context, training=False):
        return x * ops.stop_gradient(self.scale)


class InFloat32(PositionWise):
    def call(self, x, context, training=False):
        return ops.cast(x, "float32")


class Cut(PositionWise):
    def call(self, x, context, training=False):
        return x[:, 1:]


class Promises(MeanInSegment):
    """Says that hypotheses need no order, which is not so."""

    reorders_cache = False

    def decode_step(self, x, cache, context, state):
        return super().decode_step(x, cache, context, state)


class IgnoresPadding(CrossAttention):
    """Its steps alone take the encoder's padding for real."""

    def __init__(self, **kwargs):
        super().__init__(2, 4, **kwargs)

    def decode_step(self, x, cache, context, state):
        return super().decode_step(x, cache, context._replace(encoded_mask=None), state)


class KeepsStep(SelfAttention):
    """Says that rows may be at steps of their own, and takes the first for all."""

    rows_apart = True

    def __init__(self, **kwargs):
        super().__init__(2, 4, **kwargs)

    def decode_step(self, x, cache, context, state):
        step = ops.reshape(state.step, (-1,))[0]
        return super().decode_step(x, cache, context, state._replace(step=step))


class NotANumber(PositionWise):
    def call(self, x, context, training=False):
        here = ops.equal(ops.arange(x.shape[1]), 2)[:, None]
        return ops.where(here, ops.cast(np.nan, x.dtype), x)


def test_layers_that_keep_the_rules_pass():
    check_sublayer(MeanInSegment, causal=True)
    check_sublayer(MeanWithoutSteps, causal=True, decodes=False)
    check_sublayer(functools.partial(FeedForward, 8))


@pytest.mark.parametrize(
    ("factory", "options", "words"),
    [
        (MeanOfAll, {"causal": True}, "sees later.* position 0 .* position 1 on"),
        (Statistic, {"causal": True}, "sees later.* position 0 .* position 1 on"),
        (
            functools.partial(Leaks, 0.05, IN_TRAINING, between(4, 5)),
            {"causal": True},
            "sees later.* in training, .* position 4 .* position 5 on",
        ),
        (NoSteps, {"causal": True}, "NoSteps has no decode_step"),
        (Forgets, {"causal": True}, "decodes otherwise.* at position 1, decode_step"),
        (FillsTooMuch, {"causal": True}, "after a prompt.* at position 3, decode_step"),
        (ReadsOtherwise, {"causal": True}, "reads a prompt otherwise.* position 0"),
        (Promises, {"causal": True}, "in a beam search: at position 1, a hypothesis"),
        (
            IgnoresPadding,
            {"causal": True, "reads_encoder": True},
            "decodes otherwise.* position 0, decode_step .*context.encoded_mask",
        ),
        (KeepsStep, {"causal": True}, "at a position of its own: at position 1, a row"),
        (MeanSoFar, {"causal": True}, "mixes packed examples.* position 3 of a"),
        (MeanOfAll, {}, "reads padding.* position 0 changes"),
        (functools.partial(FeedForward, 8), {"packs": False}, "does not refuse"),
        (Unnamed, {}, "other paths.*scale_1.*scale_2"),
        (InFloat32, {}, "InFloat32. returns float32 under mixed_bfloat16"),
        (Cut, {}, r"returns the shape \(2, 6, 12\) for \(2, 7, 12\)"),
        (NotANumber, {}, "not finite at position 2"),
    ],
)
def test_a_layer_that_breaks_a_rule_is_named(factory, options, words):
    with pytest.raises(ValueError, match=words) as error:
        check_sublayer(factory, **options)
    assert "sublayer" in str(error.value) and "\n" not in str(error.value)


def test_calls_that_need_another_argument_say_which():
    with pytest.raises(
        ValueError, match=r"pass Cut .*, or functools.partial\(Cut, ..."
    ):
        check_sublayer(Cut())
    with pytest.raises(ValueError, match="to check_sublayer, as .* max_length"):
        check_sublayer(LengthMixing)


def test_a_weight_without_gradient_is_named():
    with pytest.raises(ValueError, match="no gradient reaches .* sublayer/scale"):
        check_sublayer(Detached)
