"""One program for all layers of a stack, on JAX.

`jax.lax.scan` compiles a layer once, and runs it with the weights of each. Each step
copies the weights of the stack into one array for all layers.
"""

import keras
from keras import ops
from keras.src.backend.common.variables import AutocastScope

from remixer_tf.errors import UserError
from remixer_tf.layers.sowing import hold_back, sow
from remixer_tf.models.remat import call_recomputed


def check_scan(sublayers, survival_probability):
    """Raises ValueError unless a stack's layers can run as one program.

    `sublayers` are the dictionaries of each layer's sublayers. For
    `survival_probability` see `TransformerStack`.
    """
    if keras.backend.backend() != "jax":
        raise UserError(
            "TransformerStack.scan is for JAX. Set it to False, or run with "
            f"KERAS_BACKEND=jax. Received: {keras.backend.backend()}"
        )
    different = [i for i, layer in enumerate(sublayers) if layer != sublayers[0]]
    if different:
        raise UserError(
            "TransformerStack.scan runs one program for all layers, which must be "
            f"equal. Received: layer {different[0]} is not layer 0. Give one "
            "dictionary of sublayers for all, or set scan to False."
        )
    if survival_probability != 1:
        raise UserError(
            "TransformerStack.scan runs one program for all layers, and stochastic "
            "depth gives each another rate. Received: survival_probability="
            f"{survival_probability}. Set it to 1, or scan to False."
        )


def _check_equal(layers):
    """Raises ValueError if adapters make another program of a layer."""

    def form(layer):
        weights = [
            (w.path.removeprefix(block.path), tuple(w.shape))
            for block in layer
            for w in block.weights
        ]
        adapters = [
            (part.lora_alpha, part.lora_rank, part.lora_dropout.rate)
            for block in layer
            for part in block._flatten_layers()
            if getattr(part, "lora_enabled", False)
        ]
        return weights, adapters

    for i, layer in enumerate(layers):
        if form(layer) != form(layers[0]):
            raise UserError(
                "TransformerStack.scan runs one program for all layers, which must "
                f"have the same adapters. Received: layer {i} is not layer 0. Give "
                "all layers equal ones (Lora.layers), or set scan to False."
            )


def call_scanned(layers, x, context, remat):
    """Calls equal layers in training, one after the other, in one loop.

    Dropout masks, losses and statistics are those of the layers called one by one.
    `layers` is a list of each layer's `Block`s. x is float `[batch, length, d_model]`,
    and so is the output. Raises a ValueError if a layer has other adapters than the
    first.
    """
    variables = [[v for block in layer for v in block.variables] for layer in layers]
    parts = [[p for b in layer for p in b._flatten_layers()] for layer in layers]
    _check_equal(layers)
    with AutocastScope(None):  # Some layers read float32 weights in a bfloat16 model.
        stacked = [
            ops.stack([v.value for v in same]) for same in zip(*variables, strict=True)
        ]
    notes = {}

    def call_layer(x, values):
        mapping = zip(variables[0], values, strict=True)
        with AutocastScope(None):
            scope = keras.StatelessScope(mapping, collect_losses=True)
        before = dict(scope.state_mapping)
        with scope, hold_back() as sown:
            for block in layers[0]:
                if remat:
                    x = call_recomputed(block, x, context, remat)
                else:
                    x = block(x, context=context, training=True)
        changed = [
            i
            for i, variable in enumerate(variables[0])
            if scope.state_mapping[id(variable)] is not before[id(variable)]
        ]
        notes["changed"] = changed
        notes["sown"] = [(parts[0].index(layer), *name) for layer, *name, _ in sown]
        states = [scope.state_mapping[id(variables[0][i])] for i in changed]
        return x, (states, [value for *_, value in sown], scope.losses)

    x, (states, sown, losses) = ops.scan(call_layer, x, stacked)
    for i, layer in enumerate(layers):
        for place, new in zip(notes["changed"], states, strict=True):
            variables[i][place].assign(new[i])
        for (place, *name), value in zip(notes["sown"], sown, strict=True):
            sow(parts[i][place], *name, value[i])
        for loss in losses:
            layer[0].add_loss(loss[i])
    return x
