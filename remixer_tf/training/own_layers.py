"""Tests a user's own layers before a run trains them."""

import keras

from remixer_tf import testing
from remixer_tf.errors import UserError
from remixer_tf.layers import Sublayer
from remixer_tf.models import TransformerStack

LENGTH = 8


def check_own_layers(model, batch, decodes=False):
    """Tests the sublayers from outside this package, one of each class and stack.

    In a decoder, a layer may see no later token, and decoding has to give what training
    gives if the run `decodes`. If the data are packed, a layer keeps examples apart:
    the names of features in `batch`, a dictionary, say so. The test draws random
    weights, since initial zeros may hide a mistake. The model, which is built, keeps
    its weights.

    Raises a ValueError if a layer breaks a rule. The message names layer and position,
    and the option that skips the test.
    """
    packed = any(name.endswith("_segment_ids") for name in batch)
    for stack in model._flatten_layers():
        if isinstance(stack, TransformerStack):
            own = {}  # the first layer of each class and name
            for block in stack.blocks:
                layer = block.sublayer
                if type(layer).__module__.partition(".")[0] != "remixer_tf":
                    own.setdefault((type(layer), layer.name), layer)
            for layer in own.values():
                try:
                    _check(layer, stack, model, packed, decodes)
                except ValueError as error:
                    raise UserError(
                        f"{error} --no_layer_checks trains without this check."
                    ) from error


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
    """Whether a layer decodes: `check_decoding` finds a ValueError of another kind."""
    layer = trial.layer
    if getattr(type(layer), "decode_step", None) in (None, Sublayer.decode_step):
        return False
    try:
        layer.init_cache(*trial.x.shape[:2], trial.context(trial.x))
    except ValueError as error:
        return not isinstance(error, UserError)
    return True
