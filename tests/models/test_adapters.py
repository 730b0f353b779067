"""Which variables of a model train."""

import keras
import numpy as np
import pytest

from remixer_tf.models import Lora
from remixer_tf.models.adapters import adapt
from tests.models.tiny import tiny_batch, tiny_model


def layers_of(model):
    return sorted({v.path.rpartition("/")[0] for v in model.trainable_variables})


def test_an_expression_names_the_layers():
    model = tiny_model("remixer")
    adapt(model, Lora(2, layers=r"^decoder/.*_attention/.*/(key|out)$"))
    assert layers_of(model) == [
        f"encoder_decoder/decoder/layer_{i}_{kind}/{kind}/{name}"
        for i in range(2)
        for kind in ("cross_attention", "self_attention")
        for name in ("key", "out")
    ]


def test_a_head_trains_too():
    model = tiny_model("gmlp")
    adapt(model, Lora(2), trainable="^logits/|norm", frozen="norm/beta")
    names = {x.rpartition("/")[2] for x in layers_of(model)}
    assert names == {
        *("wi", "wo", "query", "value"),
        *("logits", "norm", "final_norm"),
    }
    assert not any(v.name == "beta" for v in model.trainable_variables)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5_1_1", "gmlp"])
def test_rank_0_and_zero_b_change_no_bit(kind):
    keras.utils.set_random_seed(0)
    model, batch = tiny_model(kind), tiny_batch()
    before = np.array(model(batch))
    adapt(model, Lora(0))
    assert not model.trainable_variables
    np.testing.assert_array_equal(np.array(model(batch)), before)
    adapt(model, Lora(3, dropout_rate=0.5))
    for training in (False, True):
        after = np.array(model(batch, training=training))
        np.testing.assert_array_equal(after, before)


def test_freezing():
    model = tiny_model("t5_1_1")
    every = {v.path for v in model.trainable_variables}
    adapt(model, frozen="^encoder/|embedding")
    paths = {v.path for v in model.trainable_variables}
    assert every - paths == {x for x in every if "/encoder/" in x or "embedding" in x}
    adapt(model, frozen="^encoder/|embedding")  # as it is already
    assert paths == {v.path for v in model.trainable_variables}
    adapt(model, trainable="norm")
    assert all("norm" in v.path for v in model.trainable_variables)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lora": {"layers": "nothing"}}, "layers='nothing' finds no layer.*has: "),
        ({"lora": {"layers": "embedding$"}}, "which is no projection"),
        ({"lora": {"layers": "("}}, r"layers must be a regular expression.*'\('"),
        ({"lora": {"rank": -1}}, "rank must be an integer of at least 0.*rank=-1"),
        ({"lora": {"rank": 99}}, "rank must be at most 8"),
        ({"lora": {"dropout_rate": 1.0}}, r"dropout_rate must be a number in \[0, 1\)"),
        ({"lora": {"alpha": -1}}, "alpha must be a number"),
        ({"trainable": "heads"}, "trainable='heads' finds no variable"),
        ({"frozen": "*"}, "frozen must be a regular expression"),
    ],
)
def test_mistakes_have_one_line(arguments, message):
    model = tiny_model("t5_1_1")
    count = len(model.trainable_variables)
    with pytest.raises(ValueError, match=message) as error:
        lora = arguments.pop("lora", None)
        adapt(model, lora and Lora(**lora), **arguments)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
    assert len(model.trainable_variables) == count
