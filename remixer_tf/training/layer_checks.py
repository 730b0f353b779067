"""What is checked of layers of a user's own before a run trains them."""

import keras

from remixer_tf import testing
from remixer_tf.errors import UserError
from remixer_tf.layers import Sublayer
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
                    raise UserError(
                        f"{error} --no_layer_checks trains without this check."
                    ) from error


def _is_own(layer):
    return type(layer).__module__.partition(".")[0] != "remixer_tf"


def _check(layer, stack, model, packed, decodes):
    in_decoder = stack is getattr(model, "decoder", None)
    exact = layer.compute_dtype == "float32"
    trial = testing.Trial(
        layer,
        stack.d_model,
        min(LENGTH, getattr(layer, "max_length", None) or LENGTH),
        reads_encoder=in_decoder and hasattr(model, "encoder"),
        vocab_size=getattr(model, "vocab_size", 2),
        position_bias=stack.position_bias,
        tolerance=1e-5 if exact else 0.05,
    )
    weights = [*layer.trainable_variables]
    if stack.position_bias is not None:
        weights += stack.position_bias.trainable_variables
    with keras.StatelessScope([*testing.random_values(weights)]):
        if in_decoder:
            trial.check_causal()
        trial.tolerance = 1e-3 if exact else 0.05
        if in_decoder and (decodes or _can_decode(trial)):
            trial.check_decoding()
        if packed:
            trial.check_packing()


def _can_decode(trial):
    """Whether it has steps; one that has none says so when it is asked to decode."""
    layer = trial.layer
    if getattr(type(layer), "decode_step", None) in (None, Sublayer.decode_step):
        return False
    try:
        layer.init_cache(*trial.x.shape[:2], trial.context(trial.x))
    except ValueError:
        return False
    return True
