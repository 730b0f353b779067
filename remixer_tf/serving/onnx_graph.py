"""Changes to graphs of ONNX: loops that read from outside, weights in 8 bits."""

import collections

import numpy as np


def graphs_of(graph):
    """Yields a graph and those inside its nodes, such as the body of a loop."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_of(attribute.g)


def read_from_outside(graph):
    """Makes loops read from the graph around them what they hand on unchanged.

    tf2onnx makes all that a loop's body reads an input and an output of each turn. A
    body may read names of the graph around it; then weights are constants in the loop
    as well, which a runtime prepares once.

    Args:
        graph: a `GraphProto`, which is changed.
    """
    for node in list(graph.node):
        for attribute in node.attribute:
            if attribute.HasField("g"):
                if node.op_type == "Loop":
                    _free_invariants(graph, node, attribute.g)
                read_from_outside(attribute.g)


def _free_invariants(graph, loop, body):
    """Does it for a node `Loop` of a graph: inputs 0 and 1 are count and condition."""
    made = {name: node for node in body.node for name in node.output}
    inside = {name for g in graphs_of(body) for node in g.node for name in node.output}
    inside |= {constant.name for constant in body.initializer}

    def source(name):
        while name in made and made[name].op_type == "Identity":
            name = made[name].input[0]
        return name

    renamed = {}
    for place in reversed(range(2, len(loop.input))):
        name, outside = body.input[place].name, loop.input[place]
        if source(body.output[place - 1].name) != name or outside in inside:
            continue
        renamed[name] = outside
        _rename_inputs([graph], {loop.output[place - 2]: outside})
        del loop.input[place], loop.output[place - 2]
        del body.input[place], body.output[place - 1]
    _rename_inputs(graphs_of(body), renamed)


def _rename_inputs(graphs, renamed):
    for graph in graphs:
        for node in graph.node:
            for place, name in enumerate(node.input):
                node.input[place] = renamed.get(name, name)
        for output in graph.output:
            output.name = renamed.get(output.name, output.name)


def quantize(model, constants):
    """Stores weights in 8 bits; products round the other factor while they run.

    `X W` becomes `s_x s_w (X_q - z) W_q`, with X_q in uint8 and its s_x and z from the
    smallest and largest number of X, by the operations DynamicQuantizeLinear and
    MatMulInteger of ONNX. A row of an embedding is read, and multiplied by its scale.

    Args:
        model: a `ModelProto` after `read_from_outside`, which is changed.
        constants: the `Constants` to store so. A product's constant is its second
            factor; others stay.
    """
    import onnx

    stored = {}  # by the name of a constant: the names of integers and scales
    for constant in list(model.graph.initializer):
        if constant.data_type != onnx.TensorProto.FLOAT:
            continue
        array = onnx.numpy_helper.to_array(constant)
        if (eight := constants.find(array)) is not None:
            names = f"{constant.name}_int8", f"{constant.name}_scale"
            stored[constant.name] = names
            arrays = [eight.integers, eight.scale]
            if eight.scale.shape[0] == 1:
                arrays[1] = eight.scale[0]  # [d_out], as runtimes expect it
            for name, array in zip(names, arrays, strict=True):
                new = onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
                model.graph.initializer.append(new)
    for graph in reversed(list(graphs_of(model.graph))):  # the nodes are copied
        _rewrite(graph, stored)
    used = collections.Counter(
        name for g in graphs_of(model.graph) for node in g.node for name in node.input
    )
    for constant in list(model.graph.initializer):
        if not used[constant.name]:
            model.graph.initializer.remove(constant)


def _rewrite(graph, stored):
    """Replaces the products and gathers of a graph that read what is `stored`."""
    nodes, rounded = [], {}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in stored:
            nodes += _product(node, *stored[node.input[1]], rounded)
        elif node.op_type == "Gather" and node.input[0] in stored:
            nodes += _rows(node, *stored[node.input[0]])
        else:
            nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _product(node, integers, scale, rounded):
    """The nodes of a product; `rounded` has the factors that others rounded before."""
    from onnx import TensorProto
    from onnx.helper import make_node

    x, y = node.input[0], node.output[0]
    if x not in rounded:
        rounded[x] = [f"{y}_{end}" for end in ("x", "x_scale", "x_zero")]
        yield make_node("DynamicQuantizeLinear", [x], rounded[x])
    x, x_scale, zero = rounded[x]
    sums, floats, scales = (f"{y}_{end}" for end in ("sums", "floats", "scales"))
    yield make_node("MatMulInteger", [x, integers, zero], [sums])
    yield make_node("Cast", [sums], [floats], to=TensorProto.FLOAT)
    yield make_node("Mul", [x_scale, scale], [scales])
    yield make_node("Mul", [floats, scales], [y], name=node.name)


def _rows(node, integers, scale):
    from onnx import TensorProto
    from onnx.helper import make_node

    y = node.output[0]
    row, row_scale, floats = (f"{y}_{end}" for end in ("row", "row_scale", "floats"))
    yield make_node("Gather", [integers, node.input[1]], [row])
    yield make_node("Gather", [scale, node.input[1]], [row_scale])
    yield make_node("Cast", [row], [floats], to=TensorProto.FLOAT)
    yield make_node("Mul", [floats, row_scale], [y], name=node.name)
