"""ONNX Runtime: python -m pip install 'remixer_tf[onnx]'."""

import logging

import numpy as np

from remixer_tf.errors import UserError
from remixer_tf.serving import onnx_graph

NAME = "ONNX"
EXTRA = "onnx"
MODULES = ("onnxruntime", "tf2onnx")  # what the extra installs
FILE = "model.onnx"
ANY_BATCH = True
OPSET = 18
CALL = {"opset": OPSET}  # for model.json, with names and shapes


def convert(module, function, path):
    """Writes a graph as an ONNX file, see `litert.convert`; any axes."""
    import onnx
    import tf2onnx

    _register_erfc()
    # It copies unknown operations and logs an error.
    logging.getLogger("tf2onnx").setLevel(logging.CRITICAL)
    model, _ = tf2onnx.convert.from_function(
        function, input_signature=function.input_signature, opset=OPSET
    )
    if names := sorted(_unknown_operations(onnx, model.graph)):
        raise UserError(f"ONNX cannot compute {', '.join(names)}.")
    onnx_graph.read_from_outside(model.graph)
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
