"""A model's output before its logits, for a loss that computes them in parts."""

from typing import Any, NamedTuple

from keras import ops

from remixer_tf.errors import UserError


class Hidden(NamedTuple):
    """A model's output before its logits, which are `x kernel + bias`. All float32."""

    x: Any  # `[batch, targets, d_model]`
    kernel: Any  # `[d_model, vocab_size]`
    bias: Any  # `[vocab_size]`, or None


def hidden(model, batch):
    """Calls a model in training, and leaves out its logits.

    Returns the `Hidden` of the positions that have targets. Raises a ValueError if the
    model has no logits of a vocabulary, or their adapter has dropout.
    """
    if not hasattr(model, "vocabulary_matrix"):
        raise no_vocabulary(model)
    x = model(batch, training=True, logits=False)
    return Hidden(ops.cast(x, "float32"), *model.vocabulary_matrix())


def matrix_of(layer):
    """Returns kernel and bias of a `Dense` without activation, its adapter added.

    The adapter must have no dropout, which the kernel cannot have: else a ValueError.
    """
    if layer.lora_enabled and layer.lora_dropout.rate:
        raise UserError(
            f"Layer '{layer.path}' has an adapter with dropout, and "
            "CrossEntropy.tokens_at_once cannot draw it. Set Lora.dropout_rate = 0, or "
            "tokens_at_once = None."
        )
    return ops.convert_to_tensor(layer.kernel), layer.bias


def no_vocabulary(layer):
    """Returns the error for a model or head whose classes are no vocabulary."""
    return UserError(
        "CrossEntropy.tokens_at_once computes the logits of a vocabulary in parts. "
        f"Received: {type(layer).__name__} '{layer.name}', which has none. Set "
        "tokens_at_once = None."
    )
