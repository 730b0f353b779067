"""ONNX Runtime: python -m pip install 'remixer_tf[onnx]'."""

import logging

import keras
import numpy as np
import tensorflow as tf

from remixer_tf.checkpoints import export_folder
from remixer_tf.errors import UserError
from remixer_tf.serving import onnx_graph
from remixer_tf.serving.stored_weights import StoredWeights

NAME = "ONNX"
EXTRA = "onnx"
MODULES = ("onnxruntime", "tf2onnx")  # what the extra installs
FILE = export_folder.ONNX
BATCHES = (None,)  # Any number of rows
OPSET = 18
CALL = {"opset": OPSET}  # for model.json, with names and shapes


def convert(module, functions, path):
    """Writes a graph as an ONNX file, see `litert.convert`; one, of any axes.

    Matrices of a module with `StoredWeights` are arguments of the graph until it is
    converted. As constants, the converter would copy them many times, and compute the
    bias of all positions from a table of relative ones.
    """
    import onnx
    import tf2onnx

    _register_erfc()
    # It copies unknown operations and logs an error.
    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)
    weights = getattr(module, "weights", None)
    (function,) = functions
    large = weights.matrix_weights() if isinstance(weights, StoredWeights) else []
    specs = [
        tf.TensorSpec(weight.shape, weight.dtype, name=f"weight_{number}")
        for number, weight in enumerate(large)
    ]

    def graph(arguments, values):
        with keras.StatelessScope(zip(large, values, strict=True)):
            return function.python_function(*arguments)

    model, _ = tf2onnx.convert.from_function(
        tf.function(graph, autograph=False),
        input_signature=[list(function.input_signature), specs],
        opset=OPSET,
    )
    arrays = {s.name: w.numpy() for s, w in zip(specs, large, strict=True)}
    for value in [x for x in model.graph.input if x.name in arrays]:
        model.graph.input.remove(value)
        constant = onnx.numpy_helper.from_array(arrays[value.name], value.name)
        model.graph.initializer.append(constant)
    if names := sorted(_unknown_operations(onnx, model.graph)):
        raise UserError(f"ONNX cannot compute {', '.join(names)}.")
    onnx_graph.read_from_outside(model.graph)
    onnx_graph.compute_shapes(model.graph)
    onnx.save(model, path)


def quantize(path, matrices, weights):
    """Stores weights of a file in 8 bits, see `onnx_graph.quantize`.

    Args:
        path: str, of the file, which is replaced.
        matrices: `int8.Matrices`, the constants to store so.
        weights: str, "int8".
    """
    import onnx

    model = onnx.load(path)
    onnx_graph.quantize(model, matrices)
    onnx.save(model, path)


def load(path):
    """Returns a file's function, from arrays by name to a dictionary of arrays."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(**inputs):
        return dict(zip(names, session.run(None, inputs), strict=True))

    return run


def _unknown_operations(onnx, graph):
    """Returns the set of types of nodes, in loops too, that ONNX lacks."""
    unknown = set()
    for node in graph.node:
        if not onnx.defs.has(node.op_type, OPSET, node.domain):
            unknown.add(node.op_type)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                unknown |= _unknown_operations(onnx, attribute.g)
    return unknown


def _register_erfc():
    """Makes tf2onnx write Erfc, of the exact gelu, as 1 - Erf."""
    from tf2onnx import utils
    from tf2onnx.handler import tf_op

    @tf_op("Erfc")
    class Erfc:
        @classmethod
        def version_9(cls, ctx, node, **kwargs):
            kinds = {"shapes": node.output_shapes, "dtypes": node.output_dtypes}
            dtype = utils.map_onnx_to_numpy_type(node.output_dtypes[0])
            one = ctx.make_const(utils.make_name("one"), np.ones([], dtype))
            erf = ctx.make_node("Erf", node.input, **kinds)
            ctx.remove_node(node.name)
            ctx.make_node(
                "Sub",
                [one.output[0], erf.output[0]],
                name=node.name,
                outputs=node.output,
                **kinds,
            )
