"""Outputs of sublayers and tiny models on this backend of Keras.

KERAS_BACKEND=jax python -m tests.backend_outputs FILE.npz NAME...
"""

import functools
import sys

import numpy as np
from keras import ops

from remixer_tf.layers import Context
from remixer_tf.models import ClassificationHead, MaskedLMHead, SpanHead
from tests.compiled import outputs_and_gradients
from tests.layers.harness import D_MODEL, randomize
from tests.layers.sublayers import SUBLAYERS
from tests.models.test_image_classifier import random_images, tiny_classifier
from tests.models.tiny import (
    KINDS,
    STACKS,
    read_by,
    tiny_batch,
    tiny_decoder,
    tiny_encoder,
    tiny_model,
)

# Every body, and every head on one of them.
_ENCODERS = [
    *((kind, MaskedLMHead) for kind in (*STACKS, "cbow")),
    ("bert", functools.partial(ClassificationHead, 4)),
    ("gmlp", SpanHead),
]
_IMAGES = [("gmlp", "cls"), ("mixer", "gap"), ("vit", "cls"), ("vit", "gap")]
_MODELS = {
    **{
        f"encoder-decoder {kind}": functools.partial(tiny_model, kind, num_layers=1)
        for kind in KINDS
    },
    **{
        f"encoder {i} {kind}": functools.partial(tiny_encoder, kind, head)
        for i, (kind, head) in enumerate(_ENCODERS)
    },
    **{f"decoder {kind}": functools.partial(tiny_decoder, kind) for kind in STACKS},
    **{
        f"images {kind} {pool}": functools.partial(tiny_classifier, kind, pool)
        for kind, pool in _IMAGES
    },
}
# Every sublayer and one model; all other models.
FIRST = [*SUBLAYERS, "encoder-decoder t5_1_1"]
MORE = [name for name in _MODELS if name not in FIRST]


def _sublayer(name):
    """Returns a sublayer, and a function of no arguments that calls it."""
    rng = np.random.default_rng(0)
    x, encoded = (
        rng.normal(size=(2, length, D_MODEL)).astype("float32") for length in (7, 5)
    )
    mask = np.array([[1] * 7, [1] * 4 + [0] * 3], "int32")
    context = Context(
        padding_mask=ops.convert_to_tensor(mask),
        encoded=ops.convert_to_tensor(encoded),
        encoded_mask=ops.convert_to_tensor(mask[:, :5]),
    )
    factory, _ = SUBLAYERS[name]
    layer = factory(name="sublayer")
    layer.build((None, None, D_MODEL))
    randomize(layer)
    x = ops.convert_to_tensor(x)
    return layer, lambda: layer(x, context=context) * mask[:, :, None]


def _model(name):
    model = _MODELS[name]()
    randomize(model)
    images = name.startswith("images")
    batch = {"images": random_images()} if images else tiny_batch()
    return model, lambda: model(read_by(model, batch))


def outputs(names):
    """Returns {name: float32 array}, from weights and inputs that NumPy drew.

    "name: path" is the gradient of a weight, see `outputs_and_gradients`.

    Args:
        names: some of `FIRST` and `MORE`.
    """
    found = {}
    for name in names:
        layer, call = _sublayer(name) if name in SUBLAYERS else _model(name)
        found[name], of_weights = outputs_and_gradients(call, layer)
        for path, gradient in of_weights.items():
            path = path.partition("/")[2]
            found[f"{name}: {path}"] = 0.0 if gradient is None else gradient
    return found


if __name__ == "__main__":
    path, *names = sys.argv[1:]
    np.savez(path, **outputs(names))
