"""Which layers of a stack are others, for `TransformerStack.sublayers`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from remixer_tf.arguments import NonNegativeInt, PositiveInt, checked
from remixer_tf.errors import UserError

Layer = Mapping[str, Callable[..., Any]]  # a layer's sublayers


@checked
def interleave(
    dense: Layer, sparse: Layer, num_layers: PositiveInt, num_sparse: NonNegativeInt
) -> list[Layer]:
    """Spreads sparse layers evenly among dense ones.

    N2 of N layers are sparse: those after `floor(i N / (N2 + 1))` others, i = 1 .. N2
    (Yu et al. 2022, "Efficient Language Modeling with Sparse all-MLP"; N is their
    N1 + N2).

    Args:
        dense, sparse: dictionaries of a layer's sublayers.
        num_layers: int, N.
        num_sparse: int, N2, from 0 to N.

    Returns:
        a list of N dictionaries.

    Raises:
        ValueError: for more sparse layers than layers.
    """
    if num_sparse > num_layers:
        raise UserError(
            "The sparse layers are some of all layers. Received: "
            f"num_sparse={num_sparse} for num_layers={num_layers}"
        )
    places = {i * num_layers // (num_sparse + 1) for i in range(1, num_sparse + 1)}
    return [sparse if layer in places else dense for layer in range(num_layers)]


@checked
def alternate(layers: Sequence[Layer], num_layers: PositiveInt) -> list[Layer]:
    """Repeats a pattern of layers: with two, every second one is the second.

    Switch Transformers have a mixture of experts in every second feed-forward layer
    (Fedus et al. 2021, section 2.4).

    Args:
        layers: list of dictionaries of a layer's sublayers, the pattern.
        num_layers: int.

    Returns:
        a list of `num_layers` dictionaries.

    Raises:
        ValueError: for a pattern longer than the stack.
    """
    if not isinstance(layers, (list, tuple)):
        raise UserError(
            "layers must be a list of dictionaries of a layer's sublayers. Received: "
            f"layers={layers!r:.200}"
        )
    if not 0 < len(layers) <= num_layers:
        raise UserError(
            "A pattern of layers has to occur in the stack. Received: a pattern of "
            f"{len(layers)} for num_layers={num_layers}"
        )
    return [layers[layer % len(layers)] for layer in range(num_layers)]
