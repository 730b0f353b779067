"""Changes to graphs of ONNX: loops that read from outside, weights in 8 bits."""

from remixer_tf.serving import int8


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
                read_from_outside(attribute.g)
                if node.op_type == "Loop":
                    _free_invariants(graph, node, attribute.g)


def _free_invariants(graph, loop, body):
    """Does it for a node `Loop` of a graph: inputs 0 and 1 are count and condition."""
    made = {name: node for node in body.node for name in node.output}
    own, *nested = map(_names, graphs_of(body))
    nested = set().union(*nested)

    def source(name):
        while name in made and made[name].op_type == "Identity":
            name = made[name].input[0]
        return name

    for place in reversed(range(2, len(loop.input))):
        name, outside = body.input[place].name, loop.input[place]
        if source(body.output[place - 1].name) != name:
            continue
        if outside in own | nested or name in nested:
            continue  # The name is another value inside.
        output = loop.output[place - 2]
        del loop.input[place], loop.output[place - 2]
        del body.input[place], body.output[place - 1]
        _replace(body, name, outside)
        if output:  # "" is an output that nothing reads.
            _replace(graph, output, outside)


def _names(graph):
    """Returns the names of a graph's inputs, constants and results, as a set."""
    names = {name for node in graph.node for name in node.output}
    return names | {value.name for value in (*graph.input, *graph.initializer)}


def _replace(graph, name, other):
    """Makes a graph, and those inside its nodes, read another name."""
    from onnx.helper import make_node

    for inner in graphs_of(graph):
        for node in inner.node:
            for place, read in enumerate(node.input):
                if read == name:
                    node.input[place] = other
        if name in {output.name for output in inner.output}:
            inner.node.append(make_node("Identity", [other], [name]))


def quantize(model, shapes):
    """Stores weights in 8 bits; products round the other factor while they run.

    `X W` becomes `s_x s_w (X_q - z) W_q`, with X_q in uint8 and its s_x and z from the
    smallest and largest number of X, by the operations DynamicQuantizeLinear and
    MatMulInteger of ONNX. A row of an embedding is read, and multiplied by its scale.

    Args:
        model: a `ModelProto` after `read_from_outside`, which is changed.
        shapes: `int8.matrix_shapes`, of the constants to store so. A product's constant
            is its second factor; others stay.
    """
    import onnx

    floats = {
        constant.name: constant
        for constant in model.graph.initializer
        if constant.data_type == onnx.TensorProto.FLOAT
        and tuple(constant.dims) in shapes
    }
    stored = _Stored(model.graph, floats)
    for graph in reversed(list(graphs_of(model.graph))):  # the nodes are copied
        _rewrite(graph, stored)
    read = {
        name for g in graphs_of(model.graph) for node in g.node for name in node.input
    }
    constants = model.graph.initializer
    for place in reversed(range(len(constants))):
        if constants[place].name in {*floats} - read:
            del constants[place]


class _Stored:
    """Adds integers and scales of constants to a graph, each once."""

    def __init__(self, graph, floats):
        self._graph, self._floats, self._names = graph, floats, {}

    def __contains__(self, name):
        return name in self._floats

    def names(self, name, axis):
        """Returns the names of a constant's integers, and of its scales."""
        import onnx

        if (name, axis) not in self._names:
            array = onnx.numpy_helper.to_array(self._floats[name])
            integers, scale = int8.quantize(array, axis)
            # A product's runtime expects scales [d_out].
            arrays = integers, scale if axis == 1 else scale[0]
            names = f"{name}_int8_{axis}", f"{name}_scale_{axis}"
            for array, new in zip(arrays, names, strict=True):
                self._graph.initializer.append(onnx.numpy_helper.from_array(array, new))
            self._names[name, axis] = names
        return self._names[name, axis]


def _rewrite(graph, stored):
    """Replaces the products and look-ups of a graph that read what is `stored`."""
    nodes, rounded = [], {}
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in stored:
            nodes += _product(node, *stored.names(node.input[1], axis=0), rounded)
        elif (
            node.op_type == "Gather"
            and node.input[0] in stored
            and not any(x.name == "axis" and x.i for x in node.attribute)
        ):
            nodes += _rows(node, *stored.names(node.input[0], axis=1))
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
