"""Each mixer of gin/mixers in each kind of model: it builds, with known costs."""

import functools
import pathlib

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf import configuration
from remixer_tf.analysis.costs import count
from remixer_tf.layers import Context, DecodeState
from remixer_tf.models import Lora
from remixer_tf.models.adapters import adapt, adapted_layers
from remixer_tf.models.build import build_model, declare
from tests.compiled import compiled
from tests.layers.harness import randomize
from tests.settings import macro_of, value_of

MIXERS = pathlib.Path(configuration.gin_folder()) / "mixers"
SIZES = {"D_MODEL": 12, "D_FF": 24, "VOCAB_SIZE": 40, "MAX_LENGTH": 16}
# Macros that some mixers alone read, and T5.1.1's.
OWN = {"NUM_HEADS": 2, "D_KV": 4, "SESSION": 4, "KERNEL": 3, "D_GATE": 12}
OWN |= {"D_POSITIONS": 6, "D_HIDDEN": 6}
LAYERS = {
    "mixing_mlm": ["NUM_LAYERS = 1"],
    "mixing_lm": ["NUM_LAYERS = 1"],
    "mixing_seq2seq": ["NUM_ENCODER_LAYERS = 1", "NUM_DECODER_LAYERS = 1"],
}
FOR_ENCODERS = {
    "fnet": "FNet has no form that hides later ones",
    "hyper_mixer": "HyperMixer has no form that hides later ones",
}

pytestmark = pytest.mark.usefixtures("clear_gin")


def tiny(mixer, stack, *bindings):
    """The configuration of a model of one layer with the mixer."""
    files = [f"architectures/{stack}.gin", f"mixers/{mixer}.gin"]
    text = (MIXERS / f"{mixer}.gin").read_text()
    heads = {"NUM_HEADS", "D_KV"} if stack == "mixing_seq2seq" else set()
    own = {k: v for k, v in OWN.items() if f"%{k}\n" in text or k in heads}
    sizes = [f"{name} = {value}" for name, value in (SIZES | own).items()]
    return configuration.read(
        files, [*sizes, *LAYERS[stack], *bindings], complete=False
    )


def _built(factory):
    model = factory()
    model.build()
    return model


def each():
    """Language models, and encoders of mixers that are for encoders, are quick."""
    for mixer in sorted(x.stem for x in MIXERS.glob("*.gin")):
        quick = {"mixing_lm", "mixing_mlm"} if mixer in FOR_ENCODERS else {"mixing_lm"}
        for stack in LAYERS:
            slow = {"mixing_seq2seq": "slow"}.get(stack, "slower")
            marks = [] if stack in quick else [getattr(pytest.mark, slow)]
            yield pytest.param(mixer, stack, marks=marks)


@pytest.mark.parametrize(("mixer", "stack"), each())
def test_each_mixer(mixer, stack):
    bindings = []
    if stack == "mixing_seq2seq" and mixer in FOR_ENCODERS:
        bindings = ["DECODER_MIXER = @SelfAttention"]
    settings = tiny(mixer, stack, *bindings)
    model = value_of(settings, "Run.model")
    if stack == "mixing_lm" and mixer in FOR_ENCODERS:
        with pytest.raises(ValueError, match=FOR_ENCODERS[mixer]) as error:
            model()
        assert "\n" not in str(error.value)
        return
    lengths = {"inputs": 16, "targets": 16}
    optimizer = functools.partial(keras.optimizers.SGD, 0.1)
    for variable in declare(lambda: _built(model)).variables:
        assert hasattr(variable, "axes") or variable.name == "seed_generator_state"
    profile = count(model, optimizer, batch_size=2, feature_lengths=lengths)
    assert not profile.uncounted
    mixing = [part for (_, kind), part in profile.parts.items() if "mixing" in kind]
    assert sum(part.flops for part in mixing) > 0


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("mixer", sorted(x.stem for x in MIXERS.glob("*.gin")))
def test_sums_over_tokens_may_exceed_float16(mixer):
    """600 tokens of 30 in 12 channels add up to 216,000; float16 ends at 65,504."""
    length, causal = 600, mixer not in FOR_ENCODERS
    make = functools.partial(
        macro_of(tiny(mixer, "mixing_mlm"), "MIXER"),
        name="layer",
        max_length=length,
        causal=causal,
    )
    wide, narrow = make(dtype="float32"), make(dtype="mixed_float16")
    for layer in wide, narrow:
        layer.build((None, None, SIZES["D_MODEL"]))
    randomize(wide)
    for weight, exact in zip(narrow.weights, wide.weights, strict=True):
        weight.assign(exact)
    token = np.linspace(20, 40, SIZES["D_MODEL"])
    x = ops.convert_to_tensor(np.tile(token, (1, length, 1)).astype("float16"))
    expected = np.array(wide(ops.cast(x, "float32"), context=Context()))
    found = {"call": (narrow(x, context=Context()), expected)}
    if causal:
        state = DecodeState(ops.convert_to_tensor(length - 1), ops.arange(length))
        cache = narrow.init_cache(1, length, Context())
        _, cache = narrow.prefill(x, cache, Context(), state)
        step, _ = narrow.decode_step(x[:, -1:], cache, Context(), state)
        found["step"] = step, expected[:, -1:]
    for way, (y, exact) in found.items():
        y = np.array(y, "float64")
        error = np.abs(y - exact).max() / np.abs(exact).max()
        assert error < 0.02, way  # not nan


@pytest.mark.parametrize(
    "binding", ["HyperMixing.tied = True", "HyperMixing.tied = False"]
)
def test_adapters_of_tied_networks(binding):
    """One network has two projections, and two have four."""
    settings = tiny("hyper_mixer", "mixing_mlm", binding)
    model = _built(value_of(settings, "Run.model"))
    adapt(model, Lora(2))
    assert len(adapted_layers(model)) == (2 if "True" in binding else 4)


@pytest.mark.slower
@pytest.mark.parametrize("stack", ["mixing_lm", "mixing_mlm"])
@pytest.mark.parametrize("mixer", sorted(x.stem for x in MIXERS.glob("*.gin")))
def test_padding_adds_no_error_in_bfloat16(mixer, stack):
    """A padded batch is as near to float32 as the batch alone."""
    if mixer == "fnet" or (stack == "mixing_lm" and mixer in FOR_ENCODERS):
        pytest.skip("FNet reads padding, and these have no decoder")
    tokens = np.random.default_rng(1).integers(2, 40, (4, 9)).astype("int32")
    tokens[0, 6:] = 0
    logits = {}
    for dtype in "float32", "mixed_bfloat16":
        model = build_model(value_of(tiny(mixer, stack), "Run.model"), dtype)
        randomize(model)
        call = compiled(model)
        for padding in 0, 7:
            padded = np.pad(tokens, [(0, 0), (0, padding)])
            batch = {"encoder_input_tokens": padded}
            if stack == "mixing_lm":
                inputs = np.pad(padded, [(0, 0), (1, 0)])[:, :-1]
                batch = {"decoder_input_tokens": inputs}
            found = np.array(call(batch), "float64")[:, : tokens.shape[1]]
            logits[dtype, padding] = found[tokens > 0]
    exact = logits["float32", 0]
    assert np.abs(logits["float32", 7] - exact).max() < 1e-5
    alone, padded = (np.abs(logits["mixed_bfloat16", n] - exact) for n in (0, 7))
    # A layer rounds a few times, each by 2^-9 at most.
    assert 0 < alone.mean() < 8 * 2**-9 * exact.std()
    assert padded.mean() < 1.5 * alone.mean()
    assert padded.max() < 2 * alone.max()
