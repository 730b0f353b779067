"""Which parameters of a model train: low-rank adapters, and frozen variables.

Regular expressions find parts of paths without the model's name, such as
"encoder/layer_0_remixer/remixer/wi_0/kernel".
"""

import dataclasses
import re

from remixer_tf.arguments import (
    NonNegativeFloat,
    NonNegativeInt,
    Rate,
    check_fields,
)
from remixer_tf.errors import UserError, shorten
from remixer_tf.layers.base import Dense


@dataclasses.dataclass(frozen=True)
class Lora:
    """Low-rank adapters of projections (Hu et al. 2021, "LoRA", section 4.1).

    A projection X W becomes `X W + alpha / rank * dropout(X) A B`, with A
    `[inputs, rank]` and B `[rank, outputs]`. B starts at zero.

    Attributes:
        rank: int. 0 adds nothing.
        alpha: float, the scale times the rank; None for a scale of 1.
        layers: str, a regular expression that finds paths of projections, such as
            "^encoder/.*/(query|key|value|out)$". None: the `lora_projections` of each
            layer, see `Sublayer`: query and value of all attentions, W_1, W_2 and W_3
            of Remixer blocks, U and V of gMLP blocks.
        dropout_rate: float in [0, 1), of the adapter's input, in training only.

    Raises:
        ValueError: a value is out of its range, or `layers` is no expression.

    Examples:
        >>> lora = rt.models.Lora(rank=4, layers="^decoder/.*/(query|value)$")
        >>> run = rt.Run(lambda: rt.create("t5_1_1_tiny"), adapters=lora)
        >>> len(run.make_model().trainable_variables)
        16
    """

    rank: NonNegativeInt = 8
    alpha: NonNegativeFloat | None = None
    layers: str | None = None
    dropout_rate: Rate = 0.0

    def __post_init__(self):
        check_fields(self)
        if self.layers is not None:
            _compiled("layers", self.layers)


def adapt(model, lora=None, trainable=None, frozen=None):
    """Chooses what trains in a model. Frozen variables get no gradient and no slots.

    Args:
        model: a built `keras.Model`.
        lora: a `Lora`; None for no adapters.
        trainable: str, a regular expression that finds paths of variables that train,
            such as "^head/". None: all, or with adapters none besides these.
        frozen: str, an expression of variables that do not train; None for none.

    Raises a ValueError if an expression finds nothing, adapters do not fit the model,
    or the model is not built.
    """
    if not model.built:
        raise UserError(f"{model.name} is not built. Call build() first.")
    layers = [] if lora is None else _adapted(model, lora)
    variables = model.trainable_variables
    kept = variables if lora is None and trainable is None else []
    if trainable is not None:
        kept = _found("trainable", trainable, variables)
    if frozen is not None:
        already = [v for v in model.variables if is_frozen(v)]
        out = {id(v) for v in _found("frozen", frozen, [*variables, *already])}
        kept = [v for v in kept if id(v) not in out]
    train_only(
        model,
        kept,
        [(x, lora.rank, lora.alpha, lora.dropout_rate) for x in layers],
    )


def train_only(model, kept, adapters):
    """Freezes the variables of a built model but those `kept`, and adds adapters.

    `adapters` is a list of (projection, rank, alpha, dropout rate).
    """
    kept = {id(v) for v in kept}
    for variable in model.trainable_variables:
        if id(variable) not in kept:
            variable.trainable, variable.frozen = False, True
    for layer, rank, alpha, rate in adapters:
        layer.enable_lora(rank, alpha, dropout_rate=rate)
        # Keras froze the kernel too.
        layer._kernel.trainable = id(layer._kernel) in kept


def adapted_layers(model):
    """Returns the layers of a model that have an adapter."""
    layers = model._flatten_layers()
    return [layer for layer in layers if getattr(layer, "lora_enabled", False)]


def has_lora(model):
    """Whether a layer of a model has an adapter."""
    return bool(adapted_layers(model))


def is_frozen(variable):
    """Whether `adapt` has frozen a variable: no step changes it."""
    return getattr(variable, "frozen", False)


def own_path(part):
    """The path of a layer or variable without the model's name."""
    return part.path.partition("/")[2]


def of_adapter(path):
    """Whether a variable's path is that of an adapter, or of its dropout."""
    return "/lora_" in path


def check_trains(model):
    """Raises a ValueError if no variable of a model trains."""
    if not model.trainable_variables:
        raise UserError(
            "No variable of the model is left to train. Set Lora.rank above 0, or "
            "other Run.trainable and Run.frozen."
        )


def _adapted(model, lora):
    """Returns the projections that get adapters."""
    if has_lora(model):
        raise UserError(f"{model.name} has LoRA adapters already.")
    if lora.layers is None:
        layers = [
            _projection(layer, name)
            for layer in model._flatten_layers()
            for name in getattr(layer, "lora_projections", ())
            if hasattr(layer, name) or _says_itself(layer)
        ]
        if not layers:
            raise UserError(
                f"{model.name} has no attention, Remixer or gMLP block for LoRA. Name "
                f"projections in `layers`. {_projections(model)}"
            )
    else:
        layers = _named(model, lora.layers)
    widest = min(min(layer._kernel.shape) for layer in layers)
    if lora.rank > widest:
        raise UserError(
            f"rank must be at most {widest}, the least axis of a kernel with an "
            f"adapter. Received: rank={lora.rank}"
        )
    return layers if lora.rank else []


def _says_itself(layer):
    """Whether a layer's own class defines `lora_projections`, not an inherited one."""
    return "lora_projections" in vars(type(layer)) | vars(layer)


def _projection(layer, name):
    """Returns the projection that a layer names in `lora_projections`."""
    projection = getattr(layer, name, None)
    if not isinstance(projection, Dense):
        raise UserError(
            f"{type(layer).__name__}.lora_projections names {name!r}, and layer "
            f"'{layer.path}' has no such projection. Name those that it makes in its "
            "build with remixer_tf.layers.base.dense."
        )
    return projection


def _named(model, expression):
    """Returns the projections whose paths an expression finds."""
    search = _compiled("layers", expression).search
    layers = model._flatten_layers(include_self=False)
    every = [layer for layer in layers if search(own_path(layer))]
    layers = [layer for layer in every if isinstance(layer, Dense)]
    if not layers:
        what = f"finds {own_path(every[0])}, which is no projection" if every else ""
        raise UserError(
            f"layers={expression!r} {what or 'finds no layer'}. Adapters are for "
            f"projections. {_projections(model)}"
        )
    return layers


def _projections(model):
    every = model._flatten_layers()
    paths = sorted(own_path(layer) for layer in every if isinstance(layer, Dense))
    return f"{model.name} has: {shorten(paths)}."


def _found(name, expression, variables):
    """Returns the variables whose paths an expression finds."""
    search = _compiled(name, expression).search
    if found := [v for v in variables if search(own_path(v))]:
        return found
    raise UserError(
        f"{name}={expression!r} finds no variable. The model has: "
        f"{shorten([own_path(v) for v in variables])}."
    )


def _compiled(name, expression):
    try:
        return re.compile(expression)
    except (re.error, TypeError) as error:
        raise UserError(
            f"{name} must be a regular expression. Received: {name}={expression!r} "
            f"({error})"
        ) from None
