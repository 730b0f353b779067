"""LiteRT, which runs models on phones: python -m pip install 'remixer_tf[litert]'."""

import re
import tempfile

import tensorflow as tf

from remixer_tf.errors import UserError
from remixer_tf.serving import litert_graph

NAME = "LiteRT"
EXTRA = "litert"
MODULES = ("ai_edge_litert.interpreter",)  # what the extra installs
FILE = "model.tflite"
ANY_BATCH = False
SIGNATURE = "predict_tokens"
CALL = {"signature": SIGNATURE}  # for model.json, with names and shapes


def convert(module, function, path):
    """Writes a graph as a LiteRT file, by TensorFlow's converter.

    Raises a ValueError that names an operation which LiteRT lacks.

    Args:
        module: a `tf.Module` that holds the variables.
        function: a `tf.function` of fixed shapes that returns a dictionary.
        path: str, of the file.
    """
    with tempfile.TemporaryDirectory() as folder:
        # from_concrete_functions() writes files that do not run, or give NaN.
        tf.saved_model.save(module, folder, {SIGNATURE: function})
        converter = tf.lite.TFLiteConverter.from_saved_model(
            folder, signature_keys=[SIGNATURE]
        )
        try:
            content = converter.convert()
        except Exception as error:  # the converter's own, of no public class
            names = sorted(set(re.findall(r"'(tf\.\w+)' op", str(error))))
            if not names:
                raise
            raise UserError(f"LiteRT cannot compute {', '.join(names)}.") from error
    with open(path, "wb") as file:
        file.write(content)


def quantize(path, matrices, weights):
    """Stores weights of a file in 8 bits, see `litert_graph.quantize`.

    Args:
        path: str, of the file, which is replaced.
        matrices: `int8.Matrices`, the constants to store so.
        weights: str, "int8" or "int8_weight_only".
    """
    with open(path, "rb") as file:
        content = file.read()
    only = weights == "int8_weight_only"
    with open(path, "wb") as file:
        file.write(litert_graph.quantize(content, matrices, only))


def load(path):
    """Returns a file's function, from arrays by name to a dictionary of arrays."""
    from ai_edge_litert.interpreter import Interpreter

    return Interpreter(model_path=path).get_signature_runner(SIGNATURE)
