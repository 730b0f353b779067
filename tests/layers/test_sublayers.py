"""Every sublayer, in each of its variants, by the rules that hold for all of them."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.errors import UserError
from remixer_tf.layers import Context
from remixer_tf.testing import check_sublayer
from tests.compiled import compiled, outputs_and_gradients
from tests.layers.harness import D_MODEL, randomize
from tests.layers.sublayers import ONE_OF_EACH_CLASS, SLOW, SUBLAYERS

ON_JAX = keras.backend.backend() == "jax"


def each(quick):
    def marks(name):
        slow = "slow" if name in SLOW and not ON_JAX else "slower"
        return [] if name in quick else getattr(pytest.mark, slow)

    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=marks(name)) for name in SUBLAYERS]
    )


MIXERS = "SelfAttention", "RemixerBlock", "GatedMLP", "TokenMixingMLP"
QUICK = [x for x in ONE_OF_EACH_CLASS if not ON_JAX or x.startswith(MIXERS)]


@each(QUICK)
def test_sublayer(name):
    factory, rules = SUBLAYERS[name]
    check_sublayer(factory, d_model=D_MODEL, **rules)


@each([] if ON_JAX else SLOW)
def test_what_holds_for_ours_alone(name):
    """All weights matter, encoders look ahead, long sequences are refused."""
    factory, rules = SUBLAYERS[name]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 7, D_MODEL)).astype("float32")
    context = Context()
    if "reads_encoder" in rules:
        encoded = rng.normal(size=(2, 5, D_MODEL)).astype("float32")
        context = Context(encoded=ops.convert_to_tensor(encoded))
    layer = factory(name="sublayer")
    layer.build((None, None, D_MODEL))
    randomize(layer)
    call = compiled(layer)
    y = np.array(call(x, context=context))

    _, gradients = outputs_and_gradients(
        lambda: layer(ops.convert_to_tensor(x), context=context), layer
    )
    for path, gradient in gradients.items():
        # A key's bias adds the same to all of a row's logits: its gradient is zero.
        assert path.endswith("key/bias") or np.abs(gradient).max() > 0, path

    if not rules["causal"]:
        changed = np.concatenate([x[:, :-1], x[:, -1:] + 1], axis=1)
        change = np.array(call(changed, context=context)) - y
        assert np.abs(change[:, 0]).max() > 1e-4, "sees nothing ahead"

    if longest := rules.get("max_length"):
        too_long = np.zeros((2, longest + 1, D_MODEL), "float32")
        with pytest.raises(ValueError, match=f"{longest + 1} tokens .*={longest}"):
            call(too_long, context=context)
        call(too_long[:, :longest], context=context)


@pytest.mark.parametrize("shape", [(2, 8), (2, 2, 4, 8)])
@pytest.mark.parametrize("name", ONE_OF_EACH_CLASS)
def test_an_input_has_three_dimensions(name, shape):
    factory, _ = SUBLAYERS[name]
    layer, kind = factory(name="part"), name.partition("(")[0]
    x, context = np.zeros(shape, "float32"), Context()
    if kind.endswith("FeedForward"):  # Positions may have any number of dimensions.
        assert tuple(layer(x, context=context).shape) == shape
        return
    match = rf"^{kind} .part. reads .batch, length, d_model.*{re.escape(str(shape))}"
    with pytest.raises(UserError, match=match):
        layer(x, context=context)


@pytest.mark.parametrize("name", ONE_OF_EACH_CLASS)
def test_a_call_without_context_says_what_to_pass(name):
    factory, _ = SUBLAYERS[name]
    with pytest.raises(ValueError, match=f"^{name.partition('(')[0]} .* context=Con"):
        factory(name="sublayer")(np.zeros((2, 7, D_MODEL), "float32"))
