"""What is checked of layers of a user's own before a run trains them."""

import keras
import numpy as np
from keras import ops

from remixer_tf.layers import Context, Sublayer, checking
from remixer_tf.models import TransformerStack

LENGTH = 8


def check_own_layers(model, batch, decodes=False):
    """Tries the sublayers that are not of this package, one of each kind and stack.

    With weights drawn at random, since new ones may be zeros that hide a mistake. The
    model's own are neither read nor changed. A layer of a decoder may see no later
    token and decodes what it trains; if the data are packed, examples stay apart.

    Args:
        model: a built `keras.Model`.
        batch: a batch, or several; whether it is packed is all that is read.
        decodes: bool, whether the run will decode: each layer of the decoder has to.

    Raises:
        ValueError: a layer breaks one of these rules; the message names it, the
            position, and how to train all the same.
    """
    packed = any(name.endswith("_segment_ids") for name in batch)
    for stack in model._flatten_layers():
        if isinstance(stack, TransformerStack):
            layers = [block.sublayer for block in stack.blocks]
            own = {(type(x), x.name): x for x in reversed(layers) if _is_own(x)}
            for layer in own.values():
                try:
                    _check(layer, stack, model, packed, decodes)
                except ValueError as error:
                    raise ValueError(
                        f"{error} --no_layer_checks trains without this check."
                    ) from error


def _is_own(layer):
    return type(layer).__module__.partition(".")[0] != "remixer_tf"


def _check(layer, stack, model, packed, decodes):
    rng = np.random.default_rng(0)
    in_decoder = stack is getattr(model, "decoder", None)
    length = min(LENGTH, getattr(layer, "max_length", None) or LENGTH)
    x = rng.normal(size=(2, length, stack.d_model)).astype("float32")
    encoded = None
    if in_decoder and hasattr(model, "encoder"):
        encoded = rng.normal(size=(2, 6, stack.d_model)).astype("float32")

    def context_of(x, **fields):
        if encoded is not None:
            fields.setdefault("encoded", encoded)
            fields["encoded_mask"] = np.ones(fields["encoded"].shape[:2], "int32")
        # An id for each input, so that they change and move together.
        size = getattr(model, "vocab_size", 2)
        fields["tokens"] = (1 + 1000 * np.abs(x[..., 0]) % (size - 1)).astype("int32")
        fields["token_mask"] = np.ones(x.shape[:2], "int32")
        fields = {name: ops.convert_to_tensor(value) for name, value in fields.items()}
        if stack.position_bias is not None:
            fields["position_bias"] = stack.position_bias.whole(x.shape[1])
        return Context(**fields)

    def run(x, **fields):
        y = layer(ops.convert_to_tensor(x), context=context_of(x, **fields))
        return ops.convert_to_numpy(ops.cast(y, "float32"))

    exact = layer.compute_dtype == "float32"
    same, close = (checking.TOLERANCE, 1e-3) if exact else (0.05, 0.05)
    weights = [*layer.trainable_variables]
    if stack.position_bias is not None:
        weights += stack.position_bias.trainable_variables
    with keras.StatelessScope([(weight, _draw(weight, rng)) for weight in weights]):
        if in_decoder:
            checking.check_causal(layer, run, x, same)
            if decodes or _can_decode(layer, length, context_of(x)):
                checking.check_decoding(
                    layer, x, run(x), context_of(x), tolerance=close
                )
        if packed:
            checking.check_packing(layer, run, x, encoded, close)


def _draw(weight, rng):
    """Random values of a size that products keep."""
    fan_in = np.prod(weight.shape[:-1]) if len(weight.shape) > 1 else 4
    values = rng.normal(size=weight.shape, scale=fan_in**-0.5)
    return ops.convert_to_tensor(values.astype("float32"), weight.dtype)


def _can_decode(layer, length, context):
    """Whether it has steps; one that has none says so when it is asked to decode."""
    if getattr(type(layer), "decode_step", None) in (None, Sublayer.decode_step):
        return False
    try:
        layer.init_cache(2, length, context)
    except ValueError:
        return False
    return True
