"""Facts that all layers of a stack have in common."""

import dataclasses

from remixer_tf.arguments import PositiveInt, check_fields
from remixer_tf.errors import UserError


def join_stack(layer, *args, **kwargs):
    """Refuses a way that no stack goes any more: a UserError that names the new."""
    raise UserError(
        f"{type(layer).__name__}.join_stack: a stack calls no join_stack. It sets the "
        "attributes that told_by_stack names, such as causal and max_length; read them "
        "in build. A layer that you build in build gets them by "
        "self.stack_facts.tell(layer)."
    )


@dataclasses.dataclass(frozen=True)
class StackFacts:
    """Facts that all layers of a stack share, and the layers inside of them.

    A fact is None where the stack leaves it to each layer. A layer's attribute
    `told_by_stack` names the facts that it takes as attributes of its own.

    Attributes:
        causal: bool, whether no output may depend on a later token.
        max_length: int, the longest sequence.
    """

    causal: bool | None = None
    max_length: PositiveInt | None = None

    def __post_init__(self):
        check_fields(self)

    @property
    def bidirectional(self):
        """Whether later tokens are seen, a bool; None where `causal` is."""
        return None if self.causal is None else not self.causal

    def tell(self, layer, path=None):
        """Sets the facts in a layer, and in those inside of it, that left them None.

        `get_config` then has them as arguments of the constructors, so that a layer
        made from its configuration alone has them too.

        Args:
            layer: a `keras.layers.Layer`.
            path: str, the layer's name in an error; its own if None.

        Raises:
            ValueError: a constructor said something else, the facts are causal and a
                layer is not, or a layer has a `join_stack` of its own.
        """
        parts = list(layer._flatten_layers())
        told = [part for part in parts if hasattr(part, "told_by_stack")]
        try:
            for part in parts:
                if getattr(type(part), "join_stack", join_stack) is not join_stack:
                    join_stack(part)
            for part in told:
                for name in part.told_by_stack:
                    self._settle(part, name)
                if self.causal and not getattr(part, "causal", True):
                    raise UserError(part.not_causal())
        except UserError as error:
            raise UserError(f"Layer '{path or layer.name}': {error}") from error

    def _settle(self, layer, name):
        fact, own = getattr(self, name), getattr(layer, name)
        if fact is None or own == fact:
            return
        if own is not None:
            name = f"{type(layer).__name__}.{name}"
            raise UserError(
                f"{name} = {own} contradicts the layer's stack, for which it is "
                f"{fact}. Leave {name} unset."
            )
        setattr(layer, name, fact)
        if hasattr(layer, "remember"):  # Ours; another has a get_config of its own.
            layer.remember(**{name: fact})
