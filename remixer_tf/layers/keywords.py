"""Types of the keyword arguments that layers hand to their base class.

Editors and type checkers read them; `**kwargs: Unpack[SublayerKeywords]` lets them
underline an argument that no class takes.
"""

from typing import Any, TypedDict


class LayerKeywords(TypedDict, total=False):
    """Keywords of every `keras.layers.Layer`.

    Attributes:
        name: str, the last part of the layer's path.
        dtype: str or `keras.DTypePolicy`, Keras' precision. None: Keras' default.
        trainable: bool, whether its weights train.
        autocast: bool, whether Keras casts inputs and weights to the compute dtype.
    """

    name: str | None
    dtype: Any
    trainable: bool
    autocast: bool


class SublayerKeywords(LayerKeywords, total=False):
    """Keywords of every `Sublayer`, see there."""

    causal: bool | None
    max_length: int | None
