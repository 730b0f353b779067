"""What layers report in training: auxiliary losses and statistics."""

import contextlib
import re

from keras import ops

from remixer_tf.errors import UserError
from remixer_tf.layers import capture


@contextlib.contextmanager
def reports(model):
    """Collects what a model's layers report in a call in the block.

    What a layer sowed, see `layers.sowing`, is called "<path of the layer>/<name>". Of
    a layer that is called several times the losses are added up, and of each statistic
    the mean is taken. There are two more kinds of losses:
      "<path of the variable>/regularizer" where they are Keras' regularizers;
      "add_loss", the sum of all that was given to Keras' `add_loss`, without a name.

    Args:
        model: a built `keras.Model`, which the block calls once in training.

    Yields:
        (losses, statistics): dictionaries that are filled when the block ends, of
        float32 scalars, and of float32 scalars and vectors.

    Raises:
        ValueError: a statistic is neither a scalar nor a vector.
    """
    losses, statistics, calls = {}, {}, {}

    def receive_loss(layer, name, value):
        name = f"{layer.path}/{name}"
        losses[name] = losses.get(name, 0.0) + _scalar(value)

    def receive_statistic(layer, name, value):
        name = f"{layer.path}/{name}"
        if len(value.shape) > 1:
            raise UserError(
                "A statistic must be a scalar or a vector. Received: "
                f"{name} of shape {tuple(value.shape)}"
            )
        calls.setdefault(name, []).append(ops.cast(value, "float32"))

    with capture("losses", receive_loss), capture("statistics", receive_statistic):
        yield losses, statistics
    statistics |= {name: sum(values) / len(values) for name, values in calls.items()}
    regularized = [v for v in model.trainable_weights if v.regularizer is not None]
    # Keras lists what `add_loss` was given first, and then these.
    values = [_scalar(value) for value in model.losses]
    nameless = values[: len(values) - len(regularized)]
    if nameless:
        losses["add_loss"] = sum(nameless)
    for variable, value in zip(regularized, values[len(nameless) :], strict=True):
        losses[f"{variable.path}/regularizer"] = value


def weighted_sum(losses, weights):
    """Adds auxiliary losses up.

    Args:
        losses: dictionary of scalars, from `reports`.
        weights: dictionary of floats by regular expression. The first expression that
            matches a part of a loss' name gives its weight; other losses weigh 1.

    Returns:
        float32 scalar.

    Raises:
        ValueError: an expression matches no loss.
    """
    idle = [p for p in weights if not any(re.search(p, name) for name in losses)]
    if idle:
        raise UserError(
            f"auxiliary_loss_weights names {', '.join(map(repr, idle))}, and no layer "
            "reports such a loss. The layers of this model report: "
            f"{', '.join(sorted(losses)) or 'none'}."
        )
    total = ops.zeros((), "float32")
    for name, loss in losses.items():
        weight = next((w for p, w in weights.items() if re.search(p, name)), 1.0)
        if weight:  # What weighs nothing is logged alone.
            total = total + weight * loss
    return total


def _scalar(value):
    return ops.sum(ops.cast(value, "float32"))
