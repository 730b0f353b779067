"""A model says whether its outputs depend on how much padding follows."""

import functools

import numpy as np
import pytest

from remixer_tf.layers import RemixerBlock, RMSNorm
from remixer_tf.models import ClassificationHead, EncoderOnly, TransformerStack
from remixer_tf.objectives.batches import depends_on_padding
from tests.compiled import compiled
from tests.layers.harness import randomize
from tests.models.tiny import VOCAB_SIZE, tiny_batch, tiny_encoder

HEAD = functools.partial(ClassificationHead, 4)


def remixer_encoder():
    encoder = functools.partial(
        TransformerStack,
        {"remixer": RemixerBlock},
        num_layers=1,
        norm=RMSNorm,
        max_length=24,
    )
    model = EncoderOnly(encoder, HEAD, VOCAB_SIZE, 8)
    model.build()
    return model


MODELS = {
    "bert": lambda: tiny_encoder("bert", HEAD),
    "gmlp": lambda: tiny_encoder("gmlp", HEAD),
    "gmlp, padding not masked": lambda: tiny_encoder("gmlp", HEAD, mask_padding=False),
    "bert, padding not masked": lambda: tiny_encoder("bert", HEAD, mask_padding=False),
    "remixer": remixer_encoder,
}


@pytest.mark.parametrize("name", MODELS)
def test_what_a_model_says_is_what_it_does(name):
    model = MODELS[name]()
    randomize(model)
    tokens = tiny_batch()["encoder_input_tokens"]
    call = compiled(model)
    short, long = (
        np.array(call({"encoder_input_tokens": np.pad(tokens, [(0, 0), (0, more)])}))
        for more in (0, 7)
    )
    changed = np.abs(long - short).max()
    assert depends_on_padding(model) == ("not" in name)
    assert changed > 1e-2 if "not" in name else changed < 1e-5
