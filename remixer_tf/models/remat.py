"""Activations that are computed again where the gradient needs them.

A block then keeps its input alone, `[batch, length, d_model]`. A step costs one more
forward pass (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", section
3).
"""

import contextvars

import keras
from keras import ops

from remixer_tf.errors import UserError
from remixer_tf.kernels.recompute import RECOMPUTED, recompute
from remixer_tf.layers.dropout import ReplicaSeedGenerator, draws_from, state_after
from remixer_tf.layers.sowing import hold_back, sow


def check_remat(remat):
    """Raises ValueError if this engine cannot compute again what `remat` names."""
    if remat is None:
        return
    known = RECOMPUTED[keras.backend.backend()]
    if remat not in known:
        raise UserError(
            f"remat on {keras.backend.backend()} must be None, which keeps all "
            f"activations, or {' or '.join(map(repr, known))}. Received: {remat!r}"
        )


def call_recomputed(block, x, context, remat):
    """Calls a block in training; its activations are computed again for the gradient.

    Dropout masks are the same in both passes, and equal to those without `remat`. x is
    float `[batch, length, d_model]`, and so is what the block returns. Raises a
    ValueError if a layer in the block calls Keras' `add_loss`, or has variables that
    training changes otherwise than by gradients.
    """
    parts = block._flatten_layers()
    generators = [g for part in parts for g in getattr(part, "_seed_generators", ())]
    _check_state(block, parts, generators)
    starts = {generator: generator.state.value * 1 for generator in generators}
    # Only what is passed as an argument gets a gradient on TensorFlow.
    names = [n for n in ("encoded", "position_bias") if getattr(context, n) is not None]
    floats = {name: getattr(context, name) for name in names}
    here = contextvars.copy_context()  # The second call comes when others run.
    notes = {}

    def call(x, *values):
        given = context._replace(**dict(zip(floats, values, strict=True)))
        before = _count_losses(parts)
        with draws_from(starts) as counts, hold_back() as sown:
            y = block(x, context=given, training=True)
        if _count_losses(parts) > before:
            raise UserError(
                f"Layer '{block.path}' calls add_loss, which remat cannot repeat. Call "
                "remixer_tf.layers.sow(self, 'losses', NAME, VALUE) instead, or leave "
                "TransformerStack.remat out."
            )
        notes["counts"], notes["sown"] = counts, [place for *place, _ in sown]
        return y, *(ops.convert_to_tensor(value) for *_, value in sown)

    y, *values = recompute(lambda *args: here.run(call, *args), remat)(
        x, *floats.values()
    )
    for generator, count in notes["counts"].items():
        generator.state.assign(state_after(starts[generator], count))
    for (layer, collection, name), value in zip(notes["sown"], values, strict=True):
        sow(layer, collection, name, value)
    return y


def _check_state(block, parts, generators):
    others = [
        part
        for part in parts
        # Those that were made so; one that is frozen is not among them.
        if any("float" in v.dtype for v in part._non_trainable_variables)
    ]
    others += [g for g in generators if not isinstance(g, ReplicaSeedGenerator)]
    if others:
        raise UserError(
            f"Layer '{block.path}' has variables that training may change, of "
            f"{type(others[0]).__name__} '{others[0].name}', and remat would do so "
            "twice. Use remixer_tf.layers.Dropout for dropout, or leave "
            "TransformerStack.remat out."
        )


def _count_losses(parts):
    return sum(len(part._losses) + len(part._loss_ids) for part in parts)
