"""Muon trains each matrix of hidden layers as Keras' Muon trains it alone."""

import functools

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.layers.axes import make_named
from remixer_tf.models import ClassificationHead, DecoderOnly
from remixer_tf.optimizers import Muon
from tests.models.tiny import VOCAB_SIZE, tiny_encoder, tiny_mixture, tiny_model


def decoder(kind):
    model = DecoderOnly(tiny_mixture(kind), VOCAB_SIZE, d_model=8)
    model.build()
    return model


def by_muon(variables):
    optimizer = Muon(0.1)
    optimizer.build(variables)
    velocities = optimizer.adam_velocities
    return {
        variable.path.split("/", 2)[-1]
        for variable, velocity in zip(variables, velocities, strict=True)
        if velocity is None
    }


@pytest.mark.slow_on_jax
@pytest.mark.parametrize(
    ("model", "matrices"),
    [
        # Source: Jordan's "hidden weights"; no embedding, router, bias, last layer
        (
            lambda: decoder("smlp"),
            {"wi/kernel", "wo/kernel", "wi", "wo", "mixing_matrix"},
        ),
        (
            lambda: decoder("base"),
            {"query/kernel", "key/kernel", "value/kernel", "out/kernel", "wi", "wo"}
            | {"wi/kernel", "wo/kernel"},
        ),
        (
            lambda: tiny_model("mixer"),
            {"query/kernel", "key/kernel", "value/kernel", "out/kernel"}
            | {"wi_0/kernel", "wi_1/kernel", "wo/kernel", "wi_0", "wi_1", "wo"},
        ),
        (
            lambda: tiny_model("gmlp"),  # Toeplitz: a vector for each head
            {"query/kernel", "key/kernel", "value/kernel", "out/kernel"}
            | {"wi/kernel", "wo/kernel"},
        ),
        (
            lambda: tiny_encoder("amlp", functools.partial(ClassificationHead, 3)),
            {"query/kernel", "key/kernel", "value/kernel", "out/kernel"}
            | {"wi/kernel", "wo/kernel", "pooler/kernel"},
        ),
    ],
)
def test_which_variables(model, matrices):
    names = [v.rsplit("/", 2) for v in by_muon(model().trainable_variables)]
    last = {"/".join(n[-2:]) if n[-1] == "kernel" else n[-1] for n in names}
    assert last == matrices


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("axis", ["experts", "mixing_heads"])
def test_a_stack_of_matrices_is_many(axis):
    """The values come from Keras' Muon, of each matrix alone."""
    rng = np.random.default_rng(0)
    start = rng.normal(size=(3, 4, 6)).astype("float32")
    gradients = rng.normal(size=(2, *start.shape)).astype("float32")
    stack = make_named(keras.Variable, (axis, None, None), start, name="wi")
    options = {"learning_rate": 0.1, "weight_decay": 0.01}
    optimizer = Muon(**options)
    optimizer.build([stack])
    singles = [keras.Variable(value, name="wi") for value in start]
    theirs = keras.optimizers.Muon(**options)
    theirs.build(singles)
    for gradient in gradients:
        optimizer.apply([ops.convert_to_tensor(gradient)], [stack])
        theirs.apply(list(map(ops.convert_to_tensor, gradient)), singles)
    expected = [ops.convert_to_numpy(single) for single in singles]
    np.testing.assert_allclose(ops.convert_to_numpy(stack), expected, atol=1e-5)
    copy = Muon.from_config(optimizer.get_config())
    assert copy.get_config() == optimizer.get_config()
