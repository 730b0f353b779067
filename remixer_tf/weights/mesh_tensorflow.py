"""Reads the checkpoints of Mesh TensorFlow's T5."""

import functools
import os
import re

import tensorflow as tf

from remixer_tf.checkpoints.damage import first_line
from remixer_tf.errors import UserError
from remixer_tf.weights.names import mesh_tensorflow
from remixer_tf.weights.source import Source
from remixer_tf.weights.t5 import t5_from_shapes
from remixer_tf.weights.values import first_text

_SLOT = re.compile(r"_slot_(v|vr|vc|m)$")


def read_mesh_tensorflow(prefix):
    """Reads a checkpoint of TensorFlow 1, with the operative_config.gin next to it.

    `prefix` is the path of its files without `.index`. Raises a ValueError if the
    checkpoint is damaged, or holds no T5; so does reading an array.
    """

    def whole(function, *args):
        try:
            return function(*args)
        except (RuntimeError, IndexError, tf.errors.OpError) as error:
            raise UserError(
                f"{prefix} is not a whole checkpoint of TensorFlow: "
                f"{first_line(error)}. Copy its files anew."
            ) from error

    reader = whole(tf.train.load_checkpoint, prefix)
    shapes = {
        name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()
    }
    slots = [name for name in shapes if _SLOT.search(name)]
    skipped = dict.fromkeys([*slots, "global_step"], "the optimizer's")
    final = "final_layer_norm" if "encoder/final_layer_norm/scale" in shapes else None
    rows = mesh_tensorflow("layer_norm" if final else "rms_norm", final or "rms_norm")
    gin = os.path.join(os.path.dirname(prefix), "operative_config.gin")
    model = t5_from_shapes(shapes, rows, first_text(gin))
    return Source(
        "Mesh TensorFlow T5",
        *model.architecture(),
        rows,
        shapes,
        functools.partial(whole, reader.get_tensor),
        skipped,
    )
