"""Changes to graphs of ONNX: loops that read from outside, weights in 8 bits."""

import numpy as np

from remixer_tf.serving import int8

BLOCK = 128  # numbers of a row that share a scale in a product
ZERO = 128  # the operation reads integers from 1 to 255


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
    as well, which a runtime prepares once. The `GraphProto` is changed.
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


def compute_shapes(graph):
    """Makes the shapes of constants constants, and drops what nothing reads then.

    tf2onnx leaves operations that read a constant's shape alone. The `GraphProto` is
    changed.
    """
    from onnx.helper import make_node
    from onnx.numpy_helper import from_array

    shapes = {constant.name: constant.dims for constant in graph.initializer}
    for inner in graphs_of(graph):
        for node in inner.node:
            name = node.input[0] if node.op_type == "Shape" else None
            if name in shapes and not node.attribute:
                value = from_array(np.array(shapes[name], "int64"))
                node.CopyFrom(make_node("Constant", [], node.output, value=value))
    read = _read(graph)
    _delete(graph.initializer, lambda constant: constant.name not in read)


def quantize(model, matrices):
    """Stores weights in 8 bits; products round the other factor while they run.

    `X W` becomes MatMulNBits, an operation of ONNX Runtime's own: it rounds each 128
    numbers of a position to int8 with a scale of their own, and multiplies integers.
    ONNX' DynamicQuantizeLinear has one scale for all positions of a call: Remixer's
    loss on COGS changes by 0.65% with it, and by 0.10% with MatMulNBits
    (docs/results/int8.md). A row of an embedding is read, and multiplied by its scale.
    Other constants become float32. A runtime computes those, and the form that
    MatMulNBits reads, when it loads the file.

    Args:
        model: a `ModelProto` after `read_from_outside`, which is changed.
        matrices: `int8.Matrices`, the constants to store so. A product's constant is
            its second factor.
    """
    from onnx.helper import make_opsetid

    stored = _Stored(model.graph, matrices)
    for graph in reversed(list(graphs_of(model.graph))):  # the nodes are copied
        _rewrite(graph, stored)
    stored.finish()
    _number_names(model.graph)
    model.opset_import.append(make_opsetid("com.microsoft", 1))


class _Stored:
    """Adds integers and scales of constants to a graph, each once.

    They are stored by rows, which have a scale each: outputs of a kernel, tokens of an
    embedding.
    """

    def __init__(self, graph, matrices):
        import onnx

        self._graph, self._matrices = graph, matrices
        self._names, self._nodes, self._computed = set(), [], {}
        self._floats, self._arrays = {}, {}
        for constant in graph.initializer:
            if constant.data_type == onnx.TensorProto.FLOAT:
                array = onnx.numpy_helper.to_array(constant)
                self._floats[constant.name] = array
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
        return self._rows(name, self._arrays[name]) if name in self._arrays else None

    def factor(self, name):
        """Returns a product's (integers, scales, outputs, inputs), or None."""
        if name in self._transposed:
            name = self._transposed[name]
            array = self._arrays[name]
        elif name in self._arrays:
            array, name = self._arrays[name].T, f"{name}_transposed"
        else:
            return None
        return *self._blocks(*self._rows(name, array), *array.shape), *array.shape

    def _rows(self, name, array):
        names = f"{name}_int8", f"{name}_scale"
        if names[0] not in self._names:
            integers, scale = int8.quantize(array, axis=1)
            self._add(names[0], (integers.astype("int16") + ZERO).astype("uint8"))
            self._add(names[1], scale)
        return names

    def _blocks(self, integers, scale, outputs, inputs):
        """Names of the integers as `[outputs, blocks, BLOCK]`, and of their scales."""
        from onnx.helper import make_node

        names = f"{integers}_blocks", f"{scale}_blocks"
        if names[0] not in self._names:
            blocks = -(-inputs // BLOCK)
            missing = np.array([0, 0, 0, blocks * BLOCK - inputs])
            shape = np.array([outputs, blocks, BLOCK])
            padding = [
                self._add(f"{integers}_missing", missing),
                self._add(f"{integers}_zero", np.uint8(ZERO)),
            ]
            shape, columns = (
                self._add(f"{integers}_{len(x)}_axes", x) for x in (shape, shape[:2])
            )
            padded = f"{integers}_padded"
            self._nodes += [
                make_node("Pad", [integers, *padding], [padded]),
                make_node("Reshape", [padded, shape], names[:1]),
                make_node("Expand", [scale, columns], names[1:]),
            ]
            self._names.update(names)
        return names

    def _add(self, name, array):
        """Adds a constant, once, and returns its name."""
        from onnx.numpy_helper import from_array

        if name not in self._names:
            self._graph.initializer.append(from_array(np.asarray(array), name))
            self._names.add(name)
        return name

    def finish(self):
        """Drops what nothing reads, and computes other constants from integers."""
        for graph in graphs_of(self._graph):
            unread = {*self._transposed} - _read(self._graph)
            _delete(graph.node, lambda node, names=unread: node.output[0] in names)
        read, unread = _read(self._graph), set()
        for name, array in self._floats.items():
            eight = self._matrices.rows(array) if name in read else None
            if eight is not None:
                self._compute(name, *eight)
            if eight is not None or name not in read:
                unread.add(name)
        _delete(self._graph.initializer, lambda constant: constant.name in unread)
        nodes = [*self._nodes, *self._graph.node]
        del self._graph.node[:]
        self._graph.node.extend(nodes)

    def _compute(self, name, integers, scale):
        """Computes a constant from integers; a runtime does so when it loads a file."""
        from onnx import TensorProto
        from onnx.helper import make_node

        key = integers.shape, integers.tobytes(), scale.tobytes()
        if key not in self._computed:
            floats, rows = f"{name}_rows_floats", f"{name}_rows_scaled"
            integers = self._add(f"{name}_rows", integers)
            scale = self._add(f"{name}_rows_scale", scale)
            self._nodes += [
                make_node("Cast", [integers], [floats], to=TensorProto.FLOAT),
                make_node("Mul", [floats, scale], [rows]),
            ]
            self._computed[key] = rows
        shape = self._add(f"{name}_shape", np.array(self._floats[name].shape))
        self._nodes.append(make_node("Reshape", [self._computed[key], shape], [name]))


def _read(graph):
    """Returns the names that nodes of a graph, loops included, or its outputs read."""
    graphs = list(graphs_of(graph))
    read = {name for g in graphs for node in g.node for name in node.input}
    return read | {output.name for g in graphs for output in g.output}


def _delete(messages, is_unread):
    for place in reversed(range(len(messages))):
        if is_unread(messages[place]):
            del messages[place]


def _number_names(graph):
    """Numbers all names but those of a graph's inputs and outputs: names are long."""
    kept = {value.name for value in (*graph.input, *graph.output)} | {""}
    numbers = {}

    def short(name):
        return name if name in kept else numbers.setdefault(name, f"_{len(numbers)}")

    for inner in list(graphs_of(graph)):
        del inner.value_info[:]
        for value in (*inner.input, *inner.output, *inner.initializer):
            value.name = short(value.name)
        for node in inner.node:
            node.name = ""
            node.input[:] = map(short, node.input)
            node.output[:] = map(short, node.output)


def _rewrite(graph, stored):
    """Replaces the products and look-ups of a graph that read what is `stored`."""
    nodes = []
    for node in graph.node:
        names = None
        if node.op_type == "MatMul":
            names = stored.factor(node.input[1])
        elif node.op_type == "Gather" and not _has_other_axis(node):
            names = stored.table(node.input[0])
        if names is None:
            nodes.append(node)
        elif node.op_type == "MatMul":
            nodes.append(_product(node, *names))
        else:
            nodes += _rows(node, *names)
    del graph.node[:]
    graph.node.extend(nodes)


def _has_other_axis(node):
    """Whether a Gather reads columns."""
    return any(x.name == "axis" and x.i for x in node.attribute)


def _product(node, integers, scale, outputs, inputs):
    from onnx.helper import make_node

    return make_node(
        "MatMulNBits",
        [node.input[0], integers, scale],
        node.output,
        domain="com.microsoft",
        N=outputs,
        K=inputs,
        bits=8,
        block_size=BLOCK,
        accuracy_level=4,  # products of int8
    )


def _rows(node, integers, scale):
    from onnx import TensorProto
    from onnx.helper import make_node

    y = node.output[0]
    ends = "row", "row_scale", "floats", "zero", "signed"
    row, row_scale, floats, zero, signed = (f"{y}_{end}" for end in ends)
    yield make_node("Gather", [integers, node.input[1]], [row])
    yield make_node("Gather", [scale, node.input[1]], [row_scale])
    yield make_node("Cast", [row], [floats], to=TensorProto.FLOAT)
    yield make_node("Constant", [], [zero], value_float=float(ZERO))
    yield make_node("Sub", [floats, zero], [signed])
    yield make_node("Mul", [signed, row_scale], [y])
