"""LiteRT, which runs models on phones: python -m pip install 'remixer_tf[litert]'."""

import os
import re
import tempfile

import numpy as np
import tensorflow as tf

from remixer_tf.checkpoints import export_folder
from remixer_tf.errors import UserError
from remixer_tf.serving import litert_graph

NAME = "LiteRT"
EXTRA = "litert"
MODULES = ("ai_edge_litert.interpreter",)  # what the extra installs
FILE = export_folder.LITERT
# Rows that a call reads, fewest first. Each number has a signature, and costs memory:
# XNNPACK packs the weights anew. 32 rows a call were no faster than four calls of 8.
BATCHES = (1, 8)
SIGNATURE = "predict_tokens"


def _signature(rows):
    return SIGNATURE if rows == 1 else f"{SIGNATURE}_{rows}"


# For model.json, with names and shapes.
CALL = {
    "signature": SIGNATURE,
    "signatures": {_signature(rows): rows for rows in BATCHES},
}


def convert(module, functions, path):
    """Writes a graph as a LiteRT file, by TensorFlow's converter.

    Raises a ValueError that names operations which LiteRT lacks, or what fails.

    Args:
        module: a `tf.Module` that holds the variables.
        functions: list of `tf.function`s of fixed shapes that return a dictionary. They
            differ in the rows that they read. The file has the weights once.
        path: str, of the file.
    """
    with tempfile.TemporaryDirectory() as folder:
        # from_concrete_functions() writes files that do not run, or give NaN.
        signatures = {_signature(f.input_signature[0].shape[0]): f for f in functions}
        tf.saved_model.save(module, folder, signatures)
        converter = tf.lite.TFLiteConverter.from_saved_model(
            folder, signature_keys=[*signatures]
        )
        try:
            content = converter.convert()
        except Exception as error:  # the converter's own, of no public class
            names = sorted(set(re.findall(r"'(tf\.\w+)' op", str(error))))
            reason = f"LiteRT cannot compute {', '.join(names)}."
            if not names:
                line = str(error).strip().partition("\n")[0]
                line = line.rpartition("): ")[2]  # after the place in the graph
                reason = f"LiteRT's converter fails: {line}."
            raise UserError(reason) from error
    with open(path, "wb") as file:
        file.write(litert_graph.with_infinities(content))


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
    """Returns a file's function, from arrays by name to a dictionary of arrays.

    It takes any number of rows, and calls the file's signatures on all cores.
    A file with one signature, as of earlier versions, takes the rows of that one.
    """
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=path, num_threads=_cores())
    names = interpreter.get_signature_list()
    if len(names) == 1:
        return interpreter.get_signature_runner(*names)
    runners = {n: interpreter.get_signature_runner(_signature(n)) for n in BATCHES}

    def run(**inputs):
        rows, *_ = map(len, inputs.values())
        found, at = [], 0
        for size, used in calls(rows, runners):
            # A call that is not full reads its last row again.
            places = np.minimum(np.arange(at, at + size), rows - 1)
            answers = runners[size](**{name: x[places] for name, x in inputs.items()})
            found.append({name: x[:used] for name, x in answers.items()})
            at += used
        return {name: np.concatenate([x[name] for x in found]) for name in found[0]}

    return run


def _cores():
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def calls(rows, sizes):
    """Yields (size, used): calls that read rows, each of one of the sizes.

    A call that is not full costs as much, so it is at least half full.

    Examples:
        >>> [*calls(21, [1, 8])], [*calls(10, [1, 8])]
        ([(8, 8), (8, 8), (8, 5)], [(8, 8), (1, 1), (1, 1)])
    """
    while rows:
        size = max(size for size in sizes if 2 * rows >= size)
        yield size, min(size, rows)
        rows -= min(size, rows)
