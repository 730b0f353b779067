"""Activations that are computed again change no number."""

import functools

import keras
import numpy as np
import pytest

from remixer_tf.analysis.costs import random_superbatch
from remixer_tf.engines.backend_engine import backend_engine
from remixer_tf.errors import UserError
from remixer_tf.layers import Context, SelfAttention, Sublayer
from remixer_tf.models import DecoderOnly
from remixer_tf.models.stack import TransformerStack
from remixer_tf.objectives.objective import Objective
from tests.engines.engine_runs import make_model
from tests.engines.one_device import assert_same_training, make_step
from tests.models.tiny import VOCAB_SIZE, tiny_batch

ON_JAX = keras.backend.backend() == "jax"


def train(kind, remat, **options):
    """Returns the sums of two steps in one call, and the model after them."""
    keras.utils.set_random_seed(1)
    model = make_model(kind, dropout_rate=0.2)
    for stack in (getattr(model, x, None) for x in ("encoder", "decoder")):
        if stack is not None:
            stack.remat = remat
    batch = {k: np.stack([v, v]) for k, v in tiny_batch(4).items()}
    if kind == "experts":
        batch = {k: v for k, v in batch.items() if "encoder" not in k}
    step = make_step(model, keras.optimizers.Adam(0.01), **options)
    sums = {k: np.array(v) for k, v in step(batch).items()}
    return sums, model


@pytest.mark.slower
@pytest.mark.parametrize("remat", ["full", "cheap"][: 2 if ON_JAX else 1])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("t5_1_1", {}, marks=pytest.mark.slower),
        ("experts", {"micro_batches": 2}),
        pytest.param("remixer", {"micro_batches": 2}, marks=pytest.mark.slow),
        pytest.param("gmlp", {}, marks=pytest.mark.slower),
    ],
)
def test_sums_and_weights_are_those_without(kind, options, remat):
    assert_same_training(*(train(kind, x, **options) for x in (remat, None)))


class Noisy(Sublayer):
    """Changes variables that remat does not know."""

    causal = True

    def __init__(self, kind, **kwargs):
        super().__init__(**kwargs)
        self.kind = kind
        self.part = {
            "dropout": lambda: keras.layers.Dropout(0.5),
            "norm": keras.layers.BatchNormalization,
            "add_loss": lambda: keras.layers.Activation("relu"),
            "counter": lambda: keras.layers.Activation("relu"),
        }[kind]()

    def build(self, input_shape):
        self.part.build(input_shape)
        if self.kind == "counter":
            self.calls = self.add_weight(
                name="calls", shape=(), axes=(), initializer="zeros", trainable=False
            )

    def call(self, x, context, training=False):
        if self.kind == "counter":
            self.calls.assign(self.calls + 1)
        if self.kind == "add_loss":
            self.add_loss(keras.ops.sum(x))
        return self.part(x, training=training)


def test_what_cannot_be_computed_again_says_so():
    cannot = [
        ("dropout", "of SeedGenerator"),
        ("norm", "of BatchNormalization"),
        ("counter", "training may change, of Noisy"),
        ("add_loss", "calls add_loss"),
    ]
    for kind, message in cannot:
        sublayers = {"noisy": functools.partial(Noisy, kind)}
        stack = TransformerStack(sublayers, num_layers=1, remat="full")
        stack.build([2, 3, 4])
        with pytest.raises(UserError, match=message):
            stack(np.ones([2, 3, 4], "float32"), context=Context(), training=True)
    with pytest.raises(UserError, match="remat on .* must be None, .*'full'"):
        TransformerStack(sublayers, num_layers=1, remat="half")


def test_add_loss_in_a_step_says_so():
    """A step of JAX collects losses elsewhere."""
    sublayers = {"noisy": functools.partial(Noisy, "add_loss")}
    stack = functools.partial(TransformerStack, sublayers, num_layers=1, remat="full")
    model = DecoderOnly(stack, VOCAB_SIZE, d_model=8)
    batch = {k: v[None] for k, v in tiny_batch(4).items() if "encoder" not in k}
    with pytest.raises(UserError, match="calls add_loss"):
        make_step(model, keras.optimizers.SGD(0.1))(batch)


def engine_with(remat, scan=False):
    """Long rows of a small model: nearly all of a step's memory is activations."""
    engine = backend_engine()

    def make():
        decoder = functools.partial(
            TransformerStack,
            {"attention": functools.partial(SelfAttention, num_heads=4, d_kv=8)},
            num_layers=4,
            remat=remat,
            scan=scan,
        )
        return DecoderOnly(decoder, VOCAB_SIZE, 32)

    engine.build(make, lambda: keras.optimizers.SGD(0.1), "float32", Objective())
    batch = engine.model.batch_spec(4, {"inputs": 256, "targets": 256})
    return engine, random_superbatch(batch, engine.model)


@pytest.mark.slow
def test_a_step_holds_less():
    """One layer's scores in place of four: 4 x 4 x 4 x 256 x 256 floats are 17 MB."""
    held = {}
    for remat in (None, "full"):
        engine, batch = engine_with(remat, scan=ON_JAX)
        held[remat] = engine.cost(batch).bytes
    assert held[None] > 17e6
    assert held["full"] < held[None] / 2


@pytest.mark.skipif(not ON_JAX, reason="TensorFlow saves without scan")
def test_jax_warns_where_a_cpu_would_not_save(caplog):
    engine_with("full", scan=True)
    assert not caplog.messages
    engine_with("full")
    (message,) = caplog.messages
    assert "TransformerStack.scan = True" in message
