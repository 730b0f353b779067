"""Layers of one's own that break a rule are named before they train."""

import functools
from types import SimpleNamespace

import numpy as np
import pytest
from keras import ops

from remixer_tf import configuration, testing
from remixer_tf.commands import run_command
from remixer_tf.evaluation.decoded import DecodedEvaluation
from remixer_tf.layers import (
    FeedForward,
    SelfAttention,
    Sublayer,
)
from remixer_tf.layers.base import require_causal
from remixer_tf.models import DecoderOnly, EncoderDecoder, TransformerStack
from remixer_tf.run import Run
from remixer_tf.training.own_layers import check_own_layers
from remixer_tf.training.settings import Launch
from tests.training import toy

UNPACKED = {"decoder_input_tokens": None}
PACKED = {**UNPACKED, "decoder_segment_ids": None}


class MeanOfAll(Sublayer):
    """Leaks: the mean of the whole row."""

    causal = True

    def call(self, x, context, training=False):
        return x + ops.mean(x, axis=1, keepdims=True)


class MeanSoFar(Sublayer):
    """The mean of each position and those before it, of whatever example."""

    causal = True

    def build(self, input_shape):
        # As a gate of one's own may start: what is wrong is hidden by a zero.
        shape = (input_shape[-1],)
        self.scale = self.add_weight(name="scale", shape=shape, initializer="zeros")

    def call(self, x, context, training=False):
        count = ops.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]
        return self.scale * ops.cumsum(x, axis=1) / count

    def init_cache(self, batch_size, max_length, context):
        return {"sum": ops.zeros((batch_size, 1, self.scale.shape[0]))}

    def decode_step(self, x, cache, context, state):
        total = cache["sum"] + x
        count = ops.cast(state.step + 1, x.dtype)
        return self.scale * total / count, {"sum": total}


class Forgets(MeanSoFar):
    def decode_step(self, x, cache, context, state):
        return self.scale * x, cache


class NoSteps(MeanSoFar):
    init_cache, decode_step = Sublayer.init_cache, Sublayer.decode_step


class Refuses(MeanSoFar):
    def init_cache(self, batch_size, max_length, context):
        require_causal(SimpleNamespace(causal=False, path="own"))


class Mistaken(MeanSoFar):
    def init_cache(self, batch_size, max_length, context):
        raise ValueError("a mistake of mine")


class MeanInSegment(MeanSoFar):
    """`MeanSoFar` that reads which example a token belongs to, and the encoder."""

    def call(self, x, context, training=False):
        seen = ops.tri(x.shape[1])[None]
        if context.segment_ids is not None:
            ids = context.segment_ids
            same = ops.equal(ids[:, :, None], ids[:, None, :])
            seen = seen * ops.cast(same, seen.dtype)
        mean = seen / ops.sum(seen, axis=-1, keepdims=True)
        return self.scale * ops.matmul(ops.cast(mean, x.dtype), x)


class Wrapped(FeedForward):
    """A layer of this package, changed: it is one's own."""

    def call(self, x, context, training=False):
        return ops.roll(super().call(x, context=context), -3, axis=1)


def language_model(own, **sublayers):
    stack = functools.partial(TransformerStack, {"own": own, **sublayers}, 2)
    model = DecoderOnly(stack, 40, 8)
    model.build()
    return model


@pytest.mark.quick_on_jax
@pytest.mark.parametrize(
    "own, batch, words",
    [
        (MeanOfAll, UNPACKED, "MeanOfAll. sees later tokens.* 0 .*position 1 on"),
        (functools.partial(Wrapped, 8), UNPACKED, "Wrapped. sees.* 0 .*position 1 on"),
        (Forgets, UNPACKED, "Forgets. decodes otherwise.*at position 1,"),
        (MeanSoFar, PACKED, "MeanSoFar. mixes packed examples.*position 4 of"),
    ],
)
def test_a_layer_that_breaks_a_rule_is_named(own, batch, words):
    model = language_model(own)
    before = [ops.convert_to_numpy(v) for v in model.variables]
    with pytest.raises(
        ValueError, match=f"(?s)'.*decoder/layer_0_own.*{words}"
    ) as error:
        check_own_layers(model, batch)
    assert isinstance(error.value, configuration.UserError)
    assert "--no_layer_checks" in str(error.value) and "\n" not in str(error.value)
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), value)


@pytest.mark.parametrize(
    "own, batch",
    [
        (MeanSoFar, UNPACKED),
        (NoSteps, UNPACKED),
        (Refuses, UNPACKED),
        (MeanInSegment, PACKED),
    ],
)
def test_layers_that_keep_the_rules_pass(own, batch):
    check_own_layers(language_model(own), batch)


def test_a_mistake_in_init_cache_is_not_taken_for_a_refusal_to_decode():
    with pytest.raises(ValueError, match="a mistake of mine"):
        check_own_layers(language_model(Mistaken), UNPACKED)


def test_a_run_that_decodes_asks_for_steps():
    check_own_layers(language_model(MeanSoFar), UNPACKED, decodes=True)
    with pytest.raises(ValueError, match="NoSteps has no decode_step.*layer_0_own"):
        check_own_layers(language_model(NoSteps), UNPACKED, decodes=True)


def test_an_encoder_may_see_all():
    def stack(**own):
        attention = functools.partial(SelfAttention, 2, 4)
        return functools.partial(TransformerStack, {"attention": attention, **own}, 1)

    model = EncoderDecoder(stack(own=MeanOfAll), stack(), 40, 8)
    model.build()
    check_own_layers(model, UNPACKED)
    with pytest.raises(ValueError, match="encoder/layer_0_own.*mixes packed"):
        check_own_layers(model, PACKED)


def test_layers_of_this_package_cost_nothing(monkeypatch):
    monkeypatch.delattr(testing, "Trial")
    attention = functools.partial(SelfAttention, 2, 4)
    check_own_layers(
        language_model(attention, ff=functools.partial(FeedForward, 8)), {}
    )


class Decodes(DecodedEvaluation):
    """One that is asked for nothing."""

    def __init__(self):
        self.period = 1

    def check(self, model_dir, others=()):
        pass


class OwnLayerModel(toy.ToyModel):
    def __init__(self, own=MeanOfAll):
        super().__init__()
        self.decoder = TransformerStack({"own": own}, 1, name="decoder")
        self.decoder.trainable = False  # The loss does not read it.

    def build(self, input_shape=None):
        super().build()
        self.decoder.build((None, None, self.width))


def test_training_checks_before_the_first_step_unless_told_not_to(tmp_path):
    options = {"train_steps": 1, "checkpoint_period": 1, "log_period": 1}
    with pytest.raises(ValueError, match="MeanOfAll. sees later tokens"):
        toy.train_toy(Run(OwnLayerModel), tmp_path / "a", **options)
    run = Run(lambda: OwnLayerModel(NoSteps))
    options |= {"evaluations": [Decodes()]}
    with pytest.raises(ValueError, match="NoSteps has no decode_step"):
        toy.train_toy(run, tmp_path / "a", **options)
    options |= {"dry_run": True, "layer_checks": False}
    assert toy.train_toy(run, tmp_path / "b", **options) is None


@pytest.mark.parametrize("flags, checks", [([], True), (["--no_layer_checks"], False)])
def test_the_command_passes_the_flag_on(flags, checks, monkeypatch):
    given = []
    monkeypatch.setattr(configuration, "read_configuration", lambda *_, **__: None)
    called = "remixer_tf.configuration.gin_files.call"
    monkeypatch.setattr(called, lambda *args, **_: given.extend(args))
    run_command("train", ["--model_dir=x", "--gin_file=y.gin", *flags])
    (launch,) = (value for value in given if isinstance(value, Launch))
    assert launch.layer_checks == checks
