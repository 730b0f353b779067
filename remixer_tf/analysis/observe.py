"""Mixing matrices, attention and alpha of a model, on a batch."""

import re
from typing import Any, NamedTuple

import numpy as np
from keras import ops

from remixer_tf.errors import UserError
from remixer_tf.layers import capture

# The values that are drawn, and their axes; None: any shape. Others are left out.
_SHAPES = {
    "mixing": ("heads", "target", "source"),
    "attention": ("batch", "heads", "target", "source"),
    "alpha": None,
}


class Observation(NamedTuple):
    """A value that a layer sowed, see `capture`.

    Static mixing is `[heads, target, source]`. Attention has that shape too: the mean
    over examples with a real target token, NaN without any. Alpha has any shape.
    """

    layer: Any
    name: str  # 'mixing', 'attention' or 'alpha'
    value: np.ndarray  # float32


def observe(model, batch):
    """Captures the values that layers sow for a batch, cut to its longest example.

    The batch has arrays `[batch, length]` under seqio's names. Returns a list of
    `Observation`, in the order of the computation. A value with other axes than `sow`
    says is a ValueError.
    """
    batch = {key: np.asarray(value) for key, value in batch.items()}
    real = {}  # 'encoder' and 'decoder' to whether a token is real
    # A decoder's inputs begin with a 0.
    for key in ("encoder_input_tokens", "decoder_target_tokens"):
        if key not in batch:
            continue
        stack = key.split("_")[0]
        real[stack] = batch[key] != 0
        length = np.flatnonzero(real[stack].any(axis=0)).max(initial=0) + 1
        real[stack] = real[stack][:, :length]
        for name in batch:
            if name.startswith(f"{stack}_"):
                batch[name] = batch[name][:, :length]
    observations = []

    def receive(layer, name, value):
        if name not in _SHAPES:
            return
        value = np.asarray(ops.convert_to_numpy(value), "float32")
        _check_shape(layer, name, value)
        if name == "attention":
            value = _mean(value, _of_layer(real, layer))
        observations.append(Observation(layer, name, value))

    with capture("intermediates", receive):
        model(batch, training=False)
    return observations


def _check_shape(layer, name, value):
    """Raises a UserError for a value that cannot be drawn, of a user's own layer."""
    expected = _SHAPES[name]
    if expected is not None and value.ndim != len(expected):
        raise UserError(
            f"Layer '{layer.path}' ({type(layer).__name__}) sows '{name}' of shape "
            f"{value.shape}. Expected: float32 [{', '.join(expected)}]."
        )


def _of_layer(real, layer):
    """Returns the mask of a layer's stack, or None."""
    stacks = [stack for stack in real if stack in layer.path.split("/")[1:]]
    if not stacks and len(real) == 1:
        stacks = list(real)
    return real[stacks[0]] if stacks else None


def _mean(weights, real):
    """Averages `[batch, heads, target, source]` over a batch's real targets."""
    if real is None:
        return weights.mean(axis=0)
    total = np.einsum("bhts,bt->hts", weights, real.astype("float32"))
    count = real.sum(axis=0)[:, None].astype("float32")
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def locate(layer):
    """Returns (stack, number of the block, place in it) of a layer."""
    match = re.search(r"([^/]+)/layer_(\d+)_[^/]+/(.+)", layer.path)
    if not match:
        return "model", 0, layer.path
    return match[1], int(match[2]), match[3]


def token_name(vocabulary, token):
    """Returns a short visible text of a token."""
    special = {vocabulary.eos_id: "</s>", vocabulary.pad_id: "<s>"}
    text = vocabulary.decode([token])
    space = "\u2423" if text else f"<{token}>"  # an open box
    return special.get(token) or text.strip() or space
