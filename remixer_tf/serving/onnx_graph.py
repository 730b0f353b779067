"""Changes to graphs of ONNX: loops that read from outside, weights in 8 bits."""

import numpy as np

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


def quantize(model, matrices):
    """Stores weights in 8 bits; products round the other factor while they run.

    `X W` becomes `s_x s_w (X_q - z) W_q`, with X_q in uint8 and its s_x and z from the
    smallest and largest number of X, by the operations DynamicQuantizeLinear and
    MatMulInteger of ONNX. A row of an embedding is read, and multiplied by its scale.
    Logits from an embedding read its integers through a Transpose, which a runtime
    computes when it loads the file.

    Args:
        model: a `ModelProto` after `read_from_outside`, which is changed.
        matrices: `int8.Matrices`, the constants to store so. A product's constant is
            its second factor; others stay.
    """
    stored = _Stored(model.graph, matrices)
    for graph in reversed(list(graphs_of(model.graph))):  # the nodes are copied
        _rewrite(graph, stored)
    stored.finish()


class _Stored:
    """Adds integers and scales of constants to a graph, each once."""

    def __init__(self, graph, matrices):
        import onnx

        self._graph, self._names, self._nodes = graph, {}, []
        self._arrays = {}
        for constant in graph.initializer:
            if constant.data_type == onnx.TensorProto.FLOAT:
                array = onnx.numpy_helper.to_array(constant)
                if array in matrices:
                    self._arrays[constant.name] = array
        nodes = [node for g in graphs_of(graph) for node in g.node]
        # tf2onnx turns a table when it writes the file, or leaves that to a node.
        self._transposed = {
            node.output[0]: node.input[0]
            for node in nodes
            if node.op_type == "Transpose" and node.input[0] in self._arrays
        }
        for table in {node.input[0] for node in nodes if node.op_type == "Gather"}:
            for name, array in self._arrays.items():
                if table in self._arrays and name != table:
                    if np.array_equal(array.T, self._arrays[table]):
                        self._transposed[name] = table

    def table(self, name):
        """Returns the names of an embedding's integers, and of its scales, or None."""
        return self._add(name, axis=1) if name in self._arrays else None

    def factor(self, name):
        """Returns the names of a product's integers, and of its scales, or None."""
        if name not in self._transposed:
            return self._add(name, axis=0) if name in self._arrays else None
        integers, scale = self._add(self._transposed[name], axis=1)
        if integers not in self._names:
            from onnx.helper import make_node

            self._names[integers] = f"{integers}_transposed"
            node = make_node("Transpose", [integers], [self._names[integers]])
            self._nodes.append(node)
        return self._names[integers], scale

    def _add(self, name, axis):
        """Adds the constants, with scales that the numbers of an axis share."""
        from onnx.numpy_helper import from_array

        if (name, axis) not in self._names:
            integers, scale = int8.quantize(self._arrays[name], axis)
            names = f"{name}_int8_{axis}", f"{name}_scale_{axis}"
            for array, new in zip((integers, scale.reshape(-1)), names, strict=True):
                self._graph.initializer.append(from_array(array, new))
            self._names[name, axis] = names
        return self._names[name, axis]

    def finish(self):
        """Adds the Transposes of integers, and takes constants that nothing reads."""
        nodes = [*self._nodes, *self._graph.node]
        del self._graph.node[:]
        self._graph.node.extend(nodes)
        for graph in graphs_of(self._graph):
            unread = {*self._transposed} - self._read()
            _delete(graph.node, lambda node, names=unread: node.output[0] in names)
        unread = {*self._arrays} - self._read()
        _delete(self._graph.initializer, lambda constant: constant.name in unread)

    def _read(self):
        graphs = list(graphs_of(self._graph))
        read = {name for g in graphs for node in g.node for name in node.input}
        return read | {output.name for g in graphs for output in g.output}


def _delete(messages, is_unread):
    for place in reversed(range(len(messages))):
        if is_unread(messages[place]):
            del messages[place]


def _rewrite(graph, stored):
    """Replaces the products and look-ups of a graph that read what is `stored`."""
    nodes, rounded = [], {}
    for node in graph.node:
        names = None
        if node.op_type == "MatMul":
            names = stored.factor(node.input[1])
        elif node.op_type == "Gather" and not _has_other_axis(node):
            names = stored.table(node.input[0])
        if names is None:
            nodes.append(node)
        elif node.op_type == "MatMul":
            nodes += _product(node, *names, rounded)
        else:
            nodes += _rows(node, *names)
    del graph.node[:]
    graph.node.extend(nodes)


def _has_other_axis(node):
    """Whether a Gather reads columns."""
    return any(x.name == "axis" and x.i for x in node.attribute)


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
    ends = "row", "row_scale", "floats", "axis", "column"
    row, row_scale, floats, axis, column = (f"{y}_{end}" for end in ends)
    yield make_node("Gather", [integers, node.input[1]], [row])
    yield make_node("Gather", [scale, node.input[1]], [row_scale])
    yield make_node("Cast", [row], [floats], to=TensorProto.FLOAT)
    yield make_node("Constant", [], [axis], value_ints=[-1])
    yield make_node("Unsqueeze", [row_scale, axis], [column])
    yield make_node("Mul", [floats, column], [y], name=node.name)
