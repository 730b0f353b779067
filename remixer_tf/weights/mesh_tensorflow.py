"""Reads the checkpoints of Mesh TensorFlow's T5."""

import os
import re

import tensorflow as tf

from remixer_tf.errors import UserError
from remixer_tf.weights.names import mesh_tensorflow
from remixer_tf.weights.source import Source
from remixer_tf.weights.t5 import t5_from_shapes
from remixer_tf.weights.values import first_text

_SLOT = re.compile(r"_slot_(v|vr|vc|m)$")


def read_mesh_tensorflow(prefix):
    """Reads a checkpoint of TensorFlow 1, and the operative_config.gin beside it.

    Args:
        prefix: str, the path of the checkpoint's files without `.index`.

    Raises:
        ValueError: it is not of a T5.
    """
    try:
        reader = tf.train.load_checkpoint(prefix)
    except (RuntimeError, tf.errors.OpError) as error:
        raise UserError(
            f"{prefix} is not a checkpoint of TensorFlow, or not all of it: "
            f"{getattr(error, 'message', error)}"
        ) from error
    shapes = {
        name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()
    }
    skipped = {name: "of the optimizer" for name in shapes if _SLOT.search(name)}
    skipped["global_step"] = "of the optimizer"
    final = "final_layer_norm" if "encoder/final_layer_norm/scale" in shapes else None
    rows = mesh_tensorflow("layer_norm" if final else "rms_norm", final or "rms_norm")
    gin = os.path.join(os.path.dirname(prefix), "operative_config.gin")
    model = t5_from_shapes(shapes, rows, first_text(gin))
    return Source(
        "Mesh TensorFlow T5",
        *model.architecture(),
        rows,
        shapes,
        reader.get_tensor,
        skipped,
    )
