"""What every sublayer and tiny model gives on this backend of Keras.

KERAS_BACKEND=jax python -m tests.backend_outputs FILE.npz
"""

import functools
import sys

import numpy as np
from keras import ops

from remixer_tf.layers import Context
from remixer_tf.models import ClassificationHead, MaskedLMHead, SpanHead
from tests.layers.harness import D_MODEL, randomize
from tests.layers.sublayers import SUBLAYERS
from tests.models.test_image_classifier import random_images, tiny_classifier
from tests.models.tiny import (
    ALL_KINDS,
    ALL_STACKS,
    tiny_batch,
    tiny_decoder,
    tiny_encoder,
    tiny_model,
)

_HEADS = {
    "masked_lm": MaskedLMHead,
    "class": functools.partial(ClassificationHead, 4),
    "span": SpanHead,
}


def outputs():
    """Returns {name: float32 array}, from weights and inputs that NumPy drew."""
    found = {}
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
    for name, (factory, _) in SUBLAYERS.items():
        layer = factory(name="sublayer")
        layer.build((None, None, D_MODEL))
        randomize(layer)
        y = np.array(layer(ops.convert_to_tensor(x), context=context))
        found[name] = y * mask[:, :, None]
    models = {f"encoder-decoder {kind}": tiny_model(kind) for kind in ALL_KINDS}
    for kind in (*ALL_STACKS, "cbow"):
        for head, factory in _HEADS.items():
            models[f"encoder {kind} {head}"] = tiny_encoder(kind, factory)
    for kind in ALL_STACKS:
        models[f"decoder {kind}"] = tiny_decoder(kind)
    for name, model in models.items():
        randomize(model)
        found[name] = np.array(model(tiny_batch()))
    for kind in ("gmlp", "mixer", "vit"):
        for pool in ("cls", "gap"):
            model = tiny_classifier(kind, pool)
            randomize(model)
            found[f"images {kind} {pool}"] = np.array(
                model({"images": random_images()})
            )
    return found


if __name__ == "__main__":
    np.savez(sys.argv[1], **outputs())
