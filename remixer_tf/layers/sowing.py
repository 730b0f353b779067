"""Values that layers sow besides their outputs, for code that captures them.

As Flax's `sow`, with collections by use:

- "intermediates", which pictures show: attention weights as "attention", float32
  `[batch, heads, target, source]`; the matrix of static mixing as "mixing", float32
  `[heads, target, source]`; Remixer's alpha as "alpha".
- "losses", which training adds to its objective: float32 scalars, each a mean over what
  the layer has seen.
- "statistics", which training logs: scalars as curves and vectors as histograms, each a
  mean over what the layer has seen. A layer of experts calls the share of its choices
  that each expert got "load", and the share that no expert took "dropped": the log says
  when they are bad.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_receivers = contextvars.ContextVar("receivers", default=None)


class MixingFacts(NamedTuple):
    """A "mixing" matrix M as pictures show it, see `Sublayer.mixing_facts`.

    Attributes:
        symbol: str, its name in titles.
        signed: bool, whether M may have negative weights. None: if it has any.
        filter: float32 `[heads, points]` of a Toeplitz matrix, drawn as curves: its
            weights by source - target, from 1 - length on. None for other matrices.
    """

    symbol: str = "W"
    signed: bool | None = None
    filter: Any = None


@contextlib.contextmanager
def capture(
    collection: str, receive: Callable[[Any, str, Any], object]
) -> Iterator[None]:
    """Calls `receive(layer, name, value)` for all that layers sow inside the block.

    Layers return the same as ever. In a function that is traced, such as the train
    step, values are symbolic: use them before it returns.

    Args:
        collection: str, the one to capture.
        receive: a function of the layer, a str and a tensor.
    """
    token = _receivers.set({**(_receivers.get() or {}), collection: receive})
    try:
        yield
    finally:
        _receivers.reset(token)


def sow(layer: Any, collection: str, name: str, value: Any) -> None:
    """Gives a value to whoever captures the collection, if anybody does.

    Args:
        layer: the `keras.layers.Layer` that computed it.
        collection: str.
        name: str, unique among the layer's values.
        value: a tensor, or a function without arguments that is called only if the
            collection is captured.
    """
    receive = (_receivers.get() or {}).get(collection)
    if receive is not None:
        receive(layer, name, value() if callable(value) else value)
    elif collection == "losses":
        layer.add_loss(value)  # For Keras' `fit`, which asks a model for its losses.


@contextlib.contextmanager
def hold_back():
    """Keeps what layers sow inside the block, for `sow` to give it after.

    Yields a list of (layer, collection, name, value), of losses and of what is
    captured.
    """
    held = []

    def keep(collection):
        return lambda layer, name, value: held.append((layer, collection, name, value))

    collections = {"losses", *(_receivers.get() or {})}
    token = _receivers.set({collection: keep(collection) for collection in collections})
    try:
        yield held
    finally:
        _receivers.reset(token)
