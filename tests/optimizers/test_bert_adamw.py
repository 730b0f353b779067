"""AdamW decays matrices, and neither norms nor biases."""

import keras
import numpy as np
import pytest
from keras import ops

from remixer_tf.optimizers import bert_adamw
from tests.compiled import slow_on_jax
from tests.layers.harness import randomize
from tests.models.tiny import tiny_encoder


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weight_decay": "a"}, "weight_decay must be a number.* Received: .*'a'"),
        ({"epsilon": None}, "epsilon must be > 0. Received: epsilon=None"),
        ({"beta_2": 3}, r"beta_2 must be in \[0, 1\). Received: beta_2=3"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        bert_adamw(0.1, **arguments)


@pytest.mark.slow_on_jax
@pytest.mark.parametrize("kind", slow_on_jax(["bert", "amlp"], but=["amlp"]))
def test_what_decays(kind):
    """The optimizer is one from a file, as of a saved model."""
    decayed = set()
    model = tiny_encoder(kind)
    randomize(model)
    optimizer = bert_adamw(0.5, weight_decay=0.1)
    saved = keras.saving.serialize_keras_object(optimizer)
    optimizer = keras.saving.deserialize_keras_object(saved)
    variables = model.trainable_variables
    before = [ops.convert_to_numpy(v) for v in variables]
    optimizer.build(variables)
    optimizer.apply([ops.zeros(v.shape) for v in variables], variables)
    for variable, value in zip(variables, before, strict=True):
        now = ops.convert_to_numpy(variable)
        if np.array_equal(now, value):
            assert variable.path.split("/")[-1] in (
                "gamma",
                "beta",
                "bias",
                "spatial_bias",
            ), variable.path
        else:
            np.testing.assert_allclose(now, value * 0.95, rtol=1e-5)
            decayed.add(variable.path.split("/")[-1])
    assert decayed == {"embeddings", "kernel"} | (
        {"mixing_matrix"} if kind == "amlp" else set()
    )
