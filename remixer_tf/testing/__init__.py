"""Tests of layers and models, ours or a user's own, by the rules that hold for all.

`check_sublayer` tries a layer by itself, `check_model` a whole model.
"""

from remixer_tf.testing.model import check_model
from remixer_tf.testing.programs import compiled as compiled
from remixer_tf.testing.programs import (
    outputs_and_gradients as outputs_and_gradients,
)
from remixer_tf.testing.sublayer import check_sublayer
from remixer_tf.testing.trial import Trial as Trial

__all__ = ["check_model", "check_sublayer"]
