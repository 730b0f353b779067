"""Layers of one's own that break a rule are named before they train."""

import functools
import inspect
import re
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf import configuration, testing
from remixer_tf.commands import errors_in_one_line, run_command
from remixer_tf.evaluation.decoded import DecodedEvaluation
from remixer_tf.layers import (
    BaseRouter,
    Dropout,
    FeedForward,
    GatedMLP,
    GShardRouter,
    LengthMixing,
    MoE,
    PositionWise,
    RMSNorm,
    SelfAttention,
    SparseSpatialGate,
    SpatialGatingUnit,
    Sublayer,
    SwitchRouter,
)
from remixer_tf.layers.base import require_causal
from remixer_tf.models import Block, DecoderOnly, EncoderDecoder, TransformerStack
from remixer_tf.models.build import build_model
from remixer_tf.run import Run
from remixer_tf.testing import check_model
from remixer_tf.training.own_layers import check_own_layers
from remixer_tf.training.session import Session
from remixer_tf.training.settings import Launch
from tests.training import toy

LENGTH = 12  # of the rows that train
ROWS = np.zeros((2, LENGTH), "int32")
UNPACKED = {
    f"decoder_{name}": ROWS
    for name in ("input_tokens", "target_tokens", "loss_weights")
}
PACKED = {**UNPACKED, "decoder_segment_ids": ROWS, "decoder_positions": ROWS}


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


class Statistic(MeanOfAll):
    """Adds a mean of the row by a weight that no gradient changes, zeros at first."""

    def build(self, input_shape):
        options = {"initializer": "zeros", "trainable": False}
        self.scale = self.add_weight(name="scale", shape=input_shape[-1:], **options)

    def call(self, x, context, training=False):
        return x + self.scale * mean(x)


class Masked(MeanSoFar):
    """Its mask is a weight that is not trained."""

    def build(self, input_shape):
        super().build(input_shape)
        tri = np.tri(LENGTH) / np.arange(1, LENGTH + 1)[:, None]
        self.mask = self.add_weight(
            name="mask",
            shape=tri.shape,
            initializer=lambda shape, dtype: ops.cast(tri, dtype),
            trainable=False,
        )

    def call(self, x, context, training=False):
        length = x.shape[1]
        return self.scale * ops.matmul(self.mask[:length, :length], x)


def language_model(
    own,
    dtype="float32",
    kind=DecoderOnly,
    num_layers=2,
    stack=TransformerStack,
    **options,
):
    """Layers of one sublayer, or those of a list of factories."""
    layers = [{"own": f} for f in own] if isinstance(own, list) else {"own": own}
    stack = functools.partial(stack, layers, num_layers, max_length=LENGTH, **options)
    return build_model(lambda: kind(stack, 40, 8), dtype)


@pytest.mark.quick_on_jax
@pytest.mark.parametrize(
    "own, batch, words",
    [
        (MeanOfAll, UNPACKED, "MeanOfAll. sees later tokens.* 0 .*position 1 on"),
        (Statistic, UNPACKED, "Statistic. sees later tokens.* 0 .*position 1 on"),
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
        (Masked, UNPACKED),
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


class MeanOfReal(Sublayer):
    """The mean of the whole row but its padding, of whatever example."""

    def call(self, x, context, training=False):
        mask = ops.ones_like(x[..., :1])
        if context.padding_mask is not None:
            mask = ops.cast(context.padding_mask, x.dtype)[:, :, None]
        total = ops.sum(x * mask, axis=1, keepdims=True)
        return total / ops.sum(mask, axis=1, keepdims=True) + 0 * x


class ReadsAllEncoded(PositionWise):
    """Ignores what is padding in the encoder."""

    def call(self, x, context, training=False):
        return x + ops.mean(context.encoded, axis=1, keepdims=True)


def translator(encoder=(), decoder=()):
    feed_forward = {"feed_forward": functools.partial(FeedForward, 8)}

    def stack(own):
        return functools.partial(TransformerStack, {**dict(own), **feed_forward}, 1)

    model = EncoderDecoder(stack(encoder), stack(decoder), toy.VOCAB_SIZE, 8)
    model.build()
    return model


def test_an_encoder_may_see_all_but_padding():
    of_encoder = {"encoder_input_tokens": ROWS}
    batch = {**UNPACKED, **of_encoder}
    model = translator(encoder={"own": MeanOfReal})
    check_own_layers(model, batch)
    with pytest.raises(ValueError, match="encoder/layer_0_own.*mixes packed"):
        check_own_layers(model, {**PACKED, **of_encoder, "encoder_segment_ids": ROWS})
    for own in ({"encoder": {"own": MeanOfAll}}, {"decoder": {"own": ReadsAllEncoded}}):
        (stack,) = own
        with pytest.raises(ValueError, match=f"{stack}/layer_0_own.*encoder's padding"):
            check_own_layers(translator(**own), batch)


def mean(x):
    return ops.mean(x, axis=1, keepdims=True)


class Gate(SpatialGatingUnit):
    def call(self, z, context, added=None):
        return super().call(z + mean(z), context, added)


class Chooses(SwitchRouter):
    def call(self, x, tokens, token_mask, training=False):
        return super().call(x - mean(x), tokens, token_mask, training)


class NormOverTime(RMSNorm):
    def call(self, x):
        return x / (1 + ops.std(x, axis=1, keepdims=True))


class OwnBlock(Block):
    def call(self, x, context, training=False):
        return super().call(x + 0.1 * mean(x), context, training=training)


class OwnStack(TransformerStack):
    def call(self, x, context, **kwargs):
        return super().call(x + 0.1 * mean(x), context, **kwargs)


class LastFirst(SwitchRouter):
    """In training, an expert computes its last two tokens."""

    def call(self, x, tokens, token_mask, training=False):
        routing = super().call(x, tokens, token_mask, training)
        if not training:
            return routing
        same = ops.one_hot(routing.experts[..., 0], self.num_experts)
        later = ops.flip(ops.cumsum(ops.flip(same, axis=1), axis=1), axis=1)
        later = ops.sum(same * later, axis=-1, keepdims=True)
        return routing._replace(chosen=ops.less_equal(later, 2))


def mean_of_batch(x):
    return ops.mean(x, axis=(0, 1), keepdims=True)


def following(x):
    return ops.pad(x[:, 1:], [[0, 0], [0, 1], [0, 0]])


def last(x):
    return x[:, -1:]


def between(position, later):
    """What one position reads of one later one."""

    def leak(x):
        here = ops.equal(ops.arange(x.shape[1]), position)[:, None]
        return ops.cast(here, x.dtype) * x[:, later : later + 1]

    return leak


class Leaks(PositionWise):
    """`x + scale * leak(x)`: where `training` is one of the modes, from a length on."""

    def __init__(
        self, scale=0.0, modes=(False, True), leak=mean, longer_than=0, **kwargs
    ):
        super().__init__(**kwargs)
        self.scale = scale
        self.modes = modes
        self.leak = leak
        self.longer_than = longer_than

    def call(self, x, context, training=False):
        leaks = x.shape[1] > self.longer_than and bool(training) in self.modes
        return x + ops.cast(self.scale, x.dtype) * self.leak(x) if leaks else x


class SeesTargets(DecoderOnly):
    def call(self, batch, training=False, logits=True):
        targets = ops.cast(batch["decoder_target_tokens"], "float32")[..., None]
        return super().call(batch, training=training, logits=logits) + 0.1 * targets


PART = functools.partial
FEED_FORWARD = PART(FeedForward, 8)
IN_TRAINING, IN_EVALUATION = (True,), (False,)
# name: (arguments of `language_model`, what the message names)
LEAKS = {
    "in training, 1%, bfloat16": (
        {"own": PART(Leaks, 0.01, IN_TRAINING), "dtype": "mixed_bfloat16"},
        r"layer_0_own/own' \(Leaks\) sees later tokens: in training, .* 0 ",
    ),
    "of the batch, in training": (
        {"own": PART(Leaks, 0.1, IN_TRAINING, mean_of_batch)},
        r"layer_0_own/own' \(Leaks\) sees later tokens: in training, .* 0 ",
    ),
    "gate": (
        {"own": PART(GatedMLP, 12, gate=Gate)},
        r"layer_0_own/own/gating' \(Gate\)",
    ),
    "1%, bfloat16": (
        {"own": PART(Leaks, 0.01), "dtype": "mixed_bfloat16"},
        r"layer_0_own/own' \(Leaks\)",
    ),
    "beyond 8 tokens": (
        {"own": PART(Leaks, 0.1, longer_than=8)},
        r"layer_0_own/own' \(Leaks\)",
    ),
    "second layer": (
        {"own": [Leaks, PART(Leaks, 0.1)]},
        r"layer_1_own/own' \(Leaks\)",
    ),
    "router": (
        {"own": PART(MoE, 3, 8, router=Chooses), "num_layers": 1},
        r"layer_0_own/own/router' \(Chooses\)",
    ),
    "norm": (
        {"own": FEED_FORWARD, "norm": NormOverTime},
        r"layer_0_own/norm' \(NormOverTime\)",
    ),
    "block": ({"own": FEED_FORWARD, "block": OwnBlock}, r"layer_0_own' \(OwnBlock\)"),
    "stack": ({"own": FEED_FORWARD, "stack": OwnStack}, r"decoder' \(OwnStack\)"),
    "router in training": (
        {"own": PART(MoE, 3, 8, router=LastFirst), "num_layers": 1},
        r"own/router' \(LastFirst\) sees later tokens: in training",
    ),
    "model": (
        {"own": FEED_FORWARD, "kind": SeesTargets},
        r"Model 'decoder_only' \(SeesTargets\)",
    ),
}
QUICK = ["in training, 1%, bfloat16", "gate", "stack"]
EACH_LEAK = [
    pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in LEAKS
]


@pytest.mark.quick_on_jax
@pytest.mark.parametrize("name", EACH_LEAK)
def test_a_leak_is_found_and_its_layer_named(name):
    options, words = LEAKS[name]
    model = language_model(**options)
    policies = [layer.dtype_policy.name for layer in model._flatten_layers()]
    with pytest.raises(ValueError, match=f"(?s){words}.*--no_layer_checks"):
        check_own_layers(model, UNPACKED)
    assert policies == [layer.dtype_policy.name for layer in model._flatten_layers()]


# A leak, the first output that has it, and the first position that it reads.
NARROW_LEAKS = {
    "2 reads 3": (between(2, 3), 2, 3),
    "0 reads 4": (between(0, 4), 0, 1),
    "9 reads 10": (between(9, 10), 9, 10),
    "next": (following, 0, 1),
    "last": (last, 0, 1),
}
EACH_NARROW_LEAK = [
    pytest.param(n, modes, marks=[pytest.mark.slow] * ((n, modes) not in quick))
    for n in NARROW_LEAKS
    for modes in (IN_TRAINING, IN_EVALUATION)
    for quick in [[("2 reads 3", IN_TRAINING), ("9 reads 10", IN_EVALUATION)]]
]


@pytest.mark.parametrize(("name", "modes"), EACH_NARROW_LEAK)
def test_a_leak_between_two_positions_is_found(name, modes):
    """In training alone, or in evaluation alone; also beside a layer that draws."""
    leak, position, start = NARROW_LEAKS[name]
    model = language_model([PART(Leaks, 0.05, modes, leak), Noisy])
    mode = "in training, " if modes == IN_TRAINING else ""
    words = rf"\(Leaks\) sees later tokens: {mode}its output at position {position} "
    with pytest.raises(ValueError, match=f"{words}.* from position {start} on"):
        check_model(model, UNPACKED)


class Noisy(PositionWise):
    """Dropout and noise: the same numbers at each call with the same state."""

    def build(self, input_shape):
        self.dropout = Dropout(0.3, name="dropout")
        self.dropout.build()
        self.seed = keras.random.SeedGenerator(1)

    def call(self, x, context, training=False):
        if training:
            x = x + keras.random.normal(ops.shape(x), seed=self.seed)
        return self.dropout(x, training=training)


class Unseeded(PositionWise):
    def call(self, x, context, training=False):
        import tensorflow as tf

        return x + tf.random.normal(tf.shape(x)) if training else x


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        PART(MoE, 3, 8, router=BaseRouter),  # couple tokens in training, by design
        PART(MoE, 3, 8, router=GShardRouter),
        PART(MoE, 3, 8, router=SwitchRouter),
        PART(GatedMLP, 12, gate=PART(SparseSpatialGate, 2, routing="partial")),
        PART(LengthMixing, 2, toeplitz=True, dropout_rate=0.2),
    ],
)
def test_what_is_no_leak_passes(other):
    check_model(language_model([Noisy, other], "mixed_bfloat16"), UNPACKED)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="TensorFlow's noise")
def test_numbers_that_no_seed_gives_are_told():
    with pytest.warns(UserWarning, match="not tested for leaks in training"):
        check_model(language_model(Unseeded), UNPACKED)


def test_layers_of_this_package_cost_nothing(monkeypatch):
    monkeypatch.delattr(testing, "Trial")
    monkeypatch.delattr(testing, "check_model")
    attention = functools.partial(SelfAttention, 2, 4)
    assert check_own_layers(language_model([attention, FEED_FORWARD]), {}) == []


class Broken(PositionWise):
    def call(self, x, context, training=False):
        return x + self.missing


def test_an_exception_in_an_own_layer_is_one_line(capsys):
    model = language_model(Broken)
    with pytest.raises(SystemExit) as end, errors_in_one_line():
        check_own_layers(model, UNPACKED)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    number = inspect.getsourcelines(Broken)[1] + 2
    assert line == (
        f"error: {__file__}, line {number}, in call of layer "
        "'decoder_only/decoder/layer_0_own/own': `return x + self.missing` raised "
        "AttributeError: 'Broken' object has no attribute 'missing'"
    )


class TwoTexts(Exception):
    pass


class Raises(PositionWise):
    error = None

    def call(self, x, context, training=False):
        raise self.error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("a key"), "KeyError: 'a key'"),
        (
            FileNotFoundError(2, "No such", "/x"),
            "FileNotFoundError: [Errno 2] No such: '/x'",
        ),
        (TwoTexts("a", 3), "TwoTexts: ('a', 3)"),
        (NotImplementedError(), "NotImplementedError"),
        (ValueError("one\ntwo"), "ValueError: one two"),
    ],
)
def test_an_exception_keeps_its_text(error, text, monkeypatch, capsys):
    """Python's own text of it, though Keras raises another one."""
    monkeypatch.setattr(Raises, "error", error)
    model = language_model(Raises)
    with pytest.raises(SystemExit), errors_in_one_line():
        check_own_layers(model, UNPACKED)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"`raise self.error` raised {text}")


class Decodes(DecodedEvaluation):
    """One that is asked for nothing."""

    def __init__(self):
        self.period = 1

    def check(self, model_dir, others=()):
        pass


class OwnLayerModel(toy.ToyModel):
    def __init__(self):
        super().__init__()
        self.decoder = TransformerStack({"own": NoSteps}, 1, name="decoder")
        self.decoder.trainable = False  # The loss does not read it.

    def build(self, input_shape=None):
        super().build()
        self.decoder.build((None, None, self.width))


def test_training_checks_before_the_first_step_unless_told_not_to(tmp_path, capsys):
    options = {"train_steps": 1, "checkpoint_period": 1, "log_period": 1}
    with pytest.raises(ValueError, match="MeanOfAll. sees later tokens"):
        run = Run(lambda: translator(decoder={"own": MeanOfAll}))
        toy.train_toy(run, tmp_path / "a", **options)
    run = Run(OwnLayerModel)
    options |= {"dry_run": True}
    evaluations = {"evaluations": [Decodes()]}
    with pytest.raises(ValueError, match="NoSteps has no decode_step"):
        toy.train_toy(run, tmp_path / "a", **options, **evaluations)
    assert toy.train_toy(run, tmp_path / "b", **options) is None
    warning = "warning: NoSteps has no decode_step.* Commands that write text"
    assert len(re.findall(warning, capsys.readouterr().out)) == 1
    session = SimpleNamespace(launch=Launch("c", layer_checks=False))
    Session.check_layers(session, SimpleNamespace(**evaluations), {})


@pytest.mark.parametrize("flags, checks", [([], True), (["--no_layer_checks"], False)])
def test_the_command_passes_the_flag_on(flags, checks, monkeypatch):
    given = []
    monkeypatch.setattr(configuration, "read_configuration", lambda *_, **__: None)
    train = "remixer_tf.configured.train_run"
    monkeypatch.setattr(train, lambda *_, **options: given.append(options))
    run_command("train", ["--model_dir=x", "--gin_file=y.gin", *flags])
    assert given[0]["layer_checks"] == checks
