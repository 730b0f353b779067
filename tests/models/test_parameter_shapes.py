"""Names and shapes of encoders' and language models' variables."""

import functools
import json
import pathlib

import pytest

from remixer_tf.models import ClassificationHead, MaskedLMHead, SpanHead
from tests.models.tiny import VOCAB_SIZE, tiny_decoder, tiny_encoder

SNAPSHOTS = pathlib.Path(__file__).parents[1] / "testdata" / "parameter_shapes"
MODELS = {
    "bert_mlm": functools.partial(
        tiny_encoder,
        "bert",
        functools.partial(MaskedLMHead, bias_size=VOCAB_SIZE, mlm_transform=True),
    ),
    "gmlp_span": functools.partial(tiny_encoder, "gmlp", SpanHead, 0),
    "amlp_classifier": functools.partial(
        tiny_encoder, "amlp", functools.partial(ClassificationHead, 3)
    ),
    "gmlp_lm": functools.partial(tiny_decoder, "gmlp", tied_logits=False),
}


@pytest.mark.parametrize("name", MODELS)
def test_parameter_shapes_are_those_of_the_snapshot(name):
    """The shapes that checkpoints hold: a change needs a CHANGELOG line."""
    model = MODELS[name]()
    shapes = {v.path: list(v.shape) for v in model.trainable_variables}
    assert len(shapes) == len(model.trainable_variables), "paths are not unique"
    assert shapes == json.loads((SNAPSHOTS / f"{name}.json").read_text())
