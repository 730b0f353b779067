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
                if node.op_type == "Loop":
                    _free_invariants(graph, node, attribute.g)
                read_from_outside(attribute.g)


def _free_invariants(graph, loop, body):
    """Does it for a node `Loop` of a graph: inputs 0 and 1 are count and condition."""
    made = {name: node for node in body.node for name in node.output}
    inside = set()  # names that would hide those of the graph around
    for nested in graphs_of(body):
        inside |= {name for node in nested.node for name in node.output}
        inside |= {value.name for value in (*nested.input, *nested.initializer)}
    results = {output.name for output in graph.output}

    def source(name):
        while name in made and made[name].op_type == "Identity":
            name = made[name].input[0]
        return name

    renamed = {}
    for place in reversed(range(2, len(loop.input))):
        name, outside = body.input[place].name, loop.input[place]
        unchanged = source(body.output[place - 1].name) == name
        after = loop.output[place - 2]
        if not unchanged or outside in inside or after in results:
            continue
        renamed[name] = outside
        _rename_inputs(graphs_of(graph), {after: outside})
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


def quantize(model, shapes):
    """Stores weights in 8 bits; products round the other factor while they run.

    `X W` becomes `s_x s_w (X_q - z) W_q`, with X_q in uint8 and its s_x and z from the
    smallest and largest number of X, by the operations DynamicQuantizeLinear and
    MatMulInteger of ONNX. A row of an embedding is read, and multiplied by its scale.
    Tied logits multiply with the embedding's integers, transposed.

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
    stored.finish()
    for graph in graphs_of(model.graph):
        _drop_unread(graph, model.graph, stored.transposed)
    read = _read(model.graph)
    constants = model.graph.initializer
    for place in reversed(range(len(constants))):
        if constants[place].name in {*floats} - read:
            del constants[place]


def _read(graph):
    """The names that the nodes and results of a graph and those inside it read."""
    graphs = [*graphs_of(graph)]
    names = {name for g in graphs for node in g.node for name in node.input}
    return names | {output.name for g in graphs for output in g.output}


def _drop_unread(graph, whole, names):
    """Takes the nodes that make some names which nothing of the whole graph reads."""
    unread = names.keys() - _read(whole)
    kept = [node for node in graph.node if not unread.intersection(node.output)]
    if len(kept) < len(graph.node):
        del graph.node[:]
        graph.node.extend(kept)


class _Stored:
    """Adds integers and scales of constants to a graph, each once.

    Attributes:
        transposed: dictionary from the name of a transposed constant to the constant's.
    """

    def __init__(self, graph, floats):
        self._graph, self._floats, self._names = graph, floats, {}
        self._nodes = []
        self.transposed = {
            node.output[0]: node.input[0]
            for g in graphs_of(graph)
            for node in g.node
            if node.op_type == "Transpose" and node.input[0] in floats
        }

    def rows(self, name):
        """Returns the names of integers and scales `[rows, 1]` of a table, or None."""
        return self._add(name, axis=1) if name in self._floats else None

    def columns(self, name):
        """Returns the names of integers and scales of a product's factor, or None."""
        if name in self._floats:
            return self._add(name, axis=0)
        if name not in self.transposed:
            return None
        if name not in self._names:
            names = self._add(self.transposed[name], axis=1)
            new = self._names[name] = [f"{old}_transposed" for old in names]
            self._nodes += zip(names, new, strict=True)
        return self._names[name]

    def finish(self):
        """Has the whole graph transpose integers first, so that loops read them."""
        from onnx.helper import make_node

        nodes = [make_node("Transpose", [x], [y], perm=[1, 0]) for x, y in self._nodes]
        nodes += self._graph.node
        del self._graph.node[:]
        self._graph.node.extend(nodes)

    def _add(self, name, axis):
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
        if node.op_type == "MatMul" and (names := stored.columns(node.input[1])):
            nodes += _product(node, *names, rounded)
        elif node.op_type == "Gather" and not any(
            x.name == "axis" and x.i for x in node.attribute
        ):
            names = stored.rows(node.input[0])
            nodes += _rows(node, *names) if names else [node]
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
