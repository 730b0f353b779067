"""Tests a user's own layers before a run trains them."""

import keras

from remixer_tf import testing
from remixer_tf.errors import UserError
from remixer_tf.layers import Sublayer
from remixer_tf.models import TransformerStack
from remixer_tf.testing import parts

LENGTH = 8  # of the sequences that are decoded


def check_own_layers(model, batch, decodes=False):
    """Tests a model with parts from outside this package.

    - The whole model, at the lengths of `batch`: no leak, see `testing.check_model`.
      Blocks of this package are left out.
    - Each block with such parts, by itself. In a decoder, decoding has to give what
      training gives. If the data are packed, which the names of features in `batch`
      say, a layer keeps examples apart.

    The weights of such blocks are random in the test, since initial zeros may hide a
    mistake. The model, which is built, keeps its weights.

    Args:
        model: the `keras.Model`.
        batch: dictionary of arrays `[batch, length, ..]`, or of what has such a shape.
        decodes: bool, whether an evaluation of the run decodes. If not, a decoder's
            layer may refuse to.

    Returns:
        list of str, warnings: layers of decoders that refuse to decode.

    Raises:
        ValueError: a layer breaks a rule. The message names layer and position, and the
            option that skips the test.
    """
    if not parts.has_outside(model):
        return []
    packed = any(name.endswith("_segment_ids") for name in batch)
    refusals = {}
    try:
        with parts.only_outside(model):
            testing.check_model(model, batch)
        for stack in model._flatten_layers():
            if isinstance(stack, TransformerStack):
                for layer in _to_try(stack):
                    if refusal := _check(layer, stack, model, packed, decodes):
                        refusals.setdefault(refusal)
    except UserError as error:
        raise UserError(
            f"{error} --no_layer_checks trains without this check."
        ) from error
    return [
        f"{refusal} This run trains and its checkpoints can be scored. Commands that "
        "write text (infer, decoded evaluations, exports) refuse them."
        for refusal in refusals
    ]


def _to_try(stack):
    """The first of equal layers of a stack: sublayers, or blocks of one's own."""
    found = {}
    for block in stack.blocks:
        if parts.has_outside(block):
            around = [block, *block.norm._flatten_layers()]
            layer = block if any(map(parts.is_outside, around)) else block.sublayer
            found.setdefault((type(layer), layer.name, _settings(block)), layer)
    return found.values()


def _settings(block):
    """The arguments of all layers in a block, as text."""
    layers = [x for x in block._flatten_layers() if hasattr(x, "_given")]
    return repr([(type(layer), sorted(layer._given.items())) for layer in layers])


def _check(layer, stack, model, packed, decodes):
    """Tries a layer; returns why it cannot decode, if it does not have to, or None."""
    in_decoder = stack.causal or stack is getattr(model, "decoder", None)
    limit = stack.max_length or LENGTH
    with parts.comparable(model):
        trial = testing.Trial(
            layer,
            stack.d_model,
            min(LENGTH, limit),
            reads_encoder=in_decoder and getattr(model, "encoder", None) is not None,
            vocab_size=getattr(model, "vocab_size", 2),
            position_bias=stack.position_bias,
            tolerance=1e-3,
        )
        tried = [part for part in (layer, stack.position_bias) if part is not None]
        with keras.StatelessScope([*parts.random_values(tried)]):
            refusal = _refusal(trial) if in_decoder and not decodes else None
            if in_decoder and refusal is None:
                trial.check_decoding()
            if packed:
                trial.check_packing()
    return refusal


def _refusal(trial):
    """Why a layer says that it cannot decode, or None."""
    layer = trial.layer
    if not hasattr(layer, "decode_step"):
        return f"{trial.name} has no decode_step, so it cannot decode step by step."
    try:
        if type(layer).decode_step is Sublayer.decode_step:
            Sublayer.init_cache(layer, *trial.x.shape[:2], trial.context(trial.x))
        layer.init_cache(*trial.x.shape[:2], trial.context(trial.x))
    except UserError as error:
        return str(error)
    except ValueError:  # A mistake, which `check_decoding` finds again.
        return None
    return None
