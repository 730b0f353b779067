"""Changes to graphs of LiteRT: infinite constants, weights in 8 bits."""

import copy
import hashlib

import numpy as np

from remixer_tf.serving import int8

# The versions of operators that take 8 bits, so that older runtimes refuse the file.
VERSIONS = {
    "FULLY_CONNECTED": 12,
    "DEQUANTIZE": 5,
    "GATHER": 2,
    "CAST": 1,
    "MUL": 1,
    "RESHAPE": 1,
}


def with_infinities(content):
    """Makes constants infinite that TensorFlow's converter made float32's largest.

    Returns the bytes of the new file, of the same length.
    """
    from ai_edge_litert import schema_py_generated as schema

    content = bytearray(content)
    model = schema.Model.GetRootAs(content, 0)
    graphs = [model.Subgraphs(i) for i in range(model.SubgraphsLength())]
    tensors = [g.Tensors(i) for g in graphs for i in range(g.TensorsLength())]
    floats = {x.Buffer() for x in tensors if x.Type() == schema.TensorType.FLOAT32}
    for number in floats:
        buffer = model.Buffers(number)
        if buffer.DataLength():
            values = buffer.DataAsNumpy().view("<f4")  # the file's own bytes
            largest = np.abs(values) == np.finfo("float32").max
            values[largest] *= np.float32(np.inf)
    return bytes(content)


def quantize(content, matrices, weight_only=False):
    """Stores weights in 8 bits, in all graphs of a file, the bodies of loops included.

    A product of positions with a kernel rounds each position's numbers to 8 bits while
    it runs, and multiplies integers. Where these numbers have a wide range, and with
    `weight_only` everywhere, the kernel becomes float32 when the file is loaded. A row
    of an embedding, or of H in a step of a search, is read and multiplied by its scale.
    Other constants become float32 at the first call. Attention of one position reads
    the keys of a cache where they are. Returns the bytes of the new file.

    Args:
        content: bytes of a file with float32 weights.
        matrices: `int8.Matrices`, the constants to store so. A product's constant is
            its second factor.
        weight_only: bool.
    """
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    editor = _Editor(schema, model, matrices, weight_only)
    for graph in model.subgraphs:
        editor.rewrite(graph)
        for tensor in graph.tensors:
            tensor.name = None  # Long, and nothing reads it.
    read = {tensor.buffer for graph in model.subgraphs for tensor in graph.tensors}
    for number in (editor.replaced() | editor.added()) - read:
        model.buffers[number].data = None
    builder = _builder(len(content) // 2)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _builder(size):
    """A `flatbuffers.Builder` that writes equal vectors once.

    Each graph that multiplies by a kernel has its scales and zeros, 12 bytes a row.
    """
    import flatbuffers

    places = {}

    class Builder(flatbuffers.Builder):
        def CreateNumpyVector(self, x):
            key = x.dtype.str, hashlib.sha256(x.tobytes()).digest()
            if key not in places:
                places[key] = super().CreateNumpyVector(x)
            return places[key]

    return Builder(size)


class _Editor:
    """Rewrites the graphs of one file.

    Attributes:
        buffers: dictionary from a float buffer, its shape and how it is quantized to
            the buffers of integers and of scales, or None. Matrices of equal bytes may
            share a buffer.
    """

    def __init__(self, schema, model, matrices, weight_only):
        self._schema, self._model = schema, model
        self._matrices, self._weight_only = matrices, weight_only
        self._codes, self._added = {}, {}
        self.buffers = {}

    def rewrite(self, graph):
        kinds = self._schema.BuiltinOperator
        rewrites = {
            kinds.FULLY_CONNECTED: (1, self._matrix, self._product),
            kinds.GATHER: (0, self._table, self._rows),
        }
        operators = []
        for operator in graph.operators:
            code = self._model.operatorCodes[operator.opcodeIndex]
            kind = max(code.builtinCode, code.deprecatedBuiltinCode)
            stored = None
            if kind == kinds.BATCH_MATMUL and self._has_one_row(graph, operator):
                operators += self._one_row(graph, operator)
                continue
            if kind in rewrites:
                place, find, rewritten = rewrites[kind]
                tensor = graph.tensors[operator.inputs[place]]
                if kind != kinds.GATHER or _reads_rows(operator, tensor):
                    stored = self._store(tensor, find)
            if stored is None:
                operators.append(operator)
            else:
                operators += rewritten(graph, operator, *stored)
        graph.operators = [*self._read_as_floats(graph, operators), *operators]
        self._drop_unread(graph)

    def _store(self, tensor, find):
        """Returns the buffers of a constant in 8 bits and its scales, or None.

        `find` is a function from an array to its `EightBits` by rows, or None.
        """
        data = self._model.buffers[tensor.buffer].data
        if data is None or tensor.type != self._schema.TensorType.FLOAT32:
            return None
        key = tensor.buffer, self._shape(tensor), find
        if key not in self.buffers:
            eight = find(self._array(tensor))
            self.buffers[key] = eight and [self._add_buffer(x) for x in eight]
        return self.buffers[key]

    def _array(self, constant):
        data = np.asarray(self._model.buffers[constant.buffer].data, "uint8")
        return data.view("<f4").reshape(self._shape(constant))

    def _shape(self, tensor):
        return () if tensor.shape is None else tuple(tensor.shape)

    def _matrix(self, array):
        """Quantizes a kernel or an embedding: rows are outputs or tokens."""
        return int8.quantize(array, axis=1) if array in self._matrices else None

    def _table(self, array):
        """Quantizes an embedding, or a stack with these rows."""
        eight = self._matrix(array) or self._matrices.rows(array)
        is_whole = eight and eight.integers.shape[-1] == array.shape[-1]
        return eight if is_whole else None

    def _read_as_floats(self, graph, operators):
        """Yields operators that compute a graph's other constants from integers.

        LiteRT runs DEQUANTIZE of a constant once, at the graph's first call.
        """
        numbers = {number for operator in operators for number in operator.inputs}
        for number in sorted(numbers - {-1}):  # -1 is an input that is left out.
            tensor = graph.tensors[number]
            if stored := self._store(tensor, self._matrices.rows):
                integers, scale = stored
                rows = len(self._scales(scale))
                shape = [rows, len(self._model.buffers[integers].data) // rows]
                floats = self._add_tensor(graph, number, "FLOAT32", shape=shape)
                yield self._dequantize(graph, floats, integers, scale)
                reshape = self._schema.ReshapeOptionsT(tensor.shape)
                yield self._operator("RESHAPE", [floats], number, reshape)
                tensor.buffer = 0

    def replaced(self):
        """Returns the set of float buffers that have integers."""
        return {buffer for (buffer, *_), eight in self.buffers.items() if eight}

    def added(self):
        """Returns the set of buffers of integers and of scales.

        A kernel's tensor has its scales itself, and no operator reads them.
        """
        return {*self._added.values()}

    def _product(self, graph, operator, integers, scale):
        """FULLY_CONNECTED, of a kernel `[d_out, d_in]`."""
        kernel = operator.inputs[1]
        wide = self._matrices.with_wide_factor
        if self._weight_only or self._array(graph.tensors[kernel]) in wide:
            used = self._add_tensor(graph, kernel, "FLOAT32")
            yield self._dequantize(graph, used, integers, scale)
        else:
            used = self._add_integers(graph, kernel, integers, scale)
            operator.opcodeIndex = self._code("FULLY_CONNECTED")
            operator.builtinOptions.asymmetricQuantizeInputs = True
        operator.inputs = [operator.inputs[0], used, *operator.inputs[2:]]
        yield operator

    def _has_one_row(self, graph, operator):
        """Whether BATCH_MATMUL is x y^T of one row x and no constant y."""
        x, y = (graph.tensors[number] for number in operator.inputs)
        options = operator.builtinOptions
        is_transposed = options.adjY and not options.adjX
        is_constant = self._model.buffers[y.buffer].data is not None
        return is_transposed and x.shape[-2] == 1 and not is_constant

    def _one_row(self, graph, operator):
        """BATCH_MATMUL, x y^T of one row x, as y x^T.

        XNNPACK copies the second factor at each call. A step's x is small, and y the
        keys of a cache.
        """
        (x, y), (z,) = operator.inputs, operator.outputs
        shapes = [graph.tensors[number].shape for number in (x, z)]
        columns = [[*batch, n, 1] for *batch, _, n in shapes]
        column, product = (
            self._add_tensor(graph, number, "FLOAT32", shape=shape)
            for number, shape in zip((x, z), columns, strict=True)
        )
        reshape = self._schema.ReshapeOptionsT
        yield self._operator("RESHAPE", [x], column, reshape(columns[0]))
        operator.inputs, operator.outputs = [y, column], [product]
        operator.builtinOptions.adjY = False
        yield operator
        yield self._operator("RESHAPE", [product], z, reshape(shapes[1]))

    def _rows(self, graph, operator, integers, scale):
        """GATHER, of a table `[.., ids, channels]`: rows, and their scales."""
        (table, ids), (y,) = operator.inputs, operator.outputs
        thin = {"shape": [*graph.tensors[y].shape[:-1], 1]}
        column = {"shape": [*graph.tensors[table].shape[:-1], 1]}
        scales = self._add_tensor(graph, table, "FLOAT32", buffer=scale, **column)
        table = self._add_tensor(graph, table, "INT8", buffer=integers)
        row = self._add_tensor(graph, y, "INT8")
        floats = self._add_tensor(graph, y, "FLOAT32")
        row_scale = self._add_tensor(graph, y, "FLOAT32", **thin)
        kinds = self._schema.TensorType
        gather = operator.builtinOptions
        cast = self._schema.CastOptionsT(kinds.INT8, kinds.FLOAT32)
        multiply = self._schema.MulOptionsT()
        yield self._operator("GATHER", [table, ids], row, gather)
        yield self._operator("GATHER", [scales, ids], row_scale, copy.copy(gather))
        yield self._operator("CAST", [row], floats, cast)
        yield self._operator("MUL", [floats, row_scale], y, multiply)

    def _dequantize(self, graph, floats, integers, scale):
        """The operator that computes a tensor `[rows, n]` from its buffers."""
        eight = self._add_integers(graph, floats, integers, scale)
        return self._operator("DEQUANTIZE", [eight], floats)

    def _add_integers(self, graph, like, integers, scale):
        """Adds the integers of a tensor `[rows, n]`, with a scale for each row."""
        scales = self._scales(scale)
        quantization = self._schema.QuantizationParametersT(
            scale=scales, zeroPoint=np.zeros(len(scales), "int64"), quantizedDimension=0
        )
        return self._add_tensor(
            graph, like, "INT8", buffer=integers, quantization=quantization
        )

    def _scales(self, buffer):
        return self._model.buffers[buffer].data.view("<f4")

    def _add_buffer(self, array):
        """Adds a buffer, unless one that was added has these bytes: its number."""
        data = np.ascontiguousarray(array).reshape(-1).view("uint8")
        digest = hashlib.sha256(data).digest()
        if digest not in self._added:
            self._added[digest] = len(self._model.buffers)
            self._model.buffers.append(self._schema.BufferT(data))
        return self._added[digest]

    def _add_tensor(self, graph, like, type, **changes):
        """Adds a tensor like another to a graph, and returns its number."""
        old = graph.tensors[like]
        new = self._schema.TensorT(
            **{"shape": old.shape, "hasRank": old.hasRank, **changes},
            type=getattr(self._schema.TensorType, type),
        )
        graph.tensors.append(new)
        return len(graph.tensors) - 1

    def _operator(self, name, inputs, output, options=None):
        kind = type(options).__name__.removesuffix("T")
        return self._schema.OperatorT(
            opcodeIndex=self._code(name),
            inputs=inputs,
            outputs=[output],
            builtinOptions=options,
            builtinOptionsType=getattr(self._schema.BuiltinOptions, kind, 0),
        )

    def _code(self, name):
        """Returns the number of an operator, which is added to the file's list."""
        if name not in self._codes:
            kind = getattr(self._schema.BuiltinOperator, name)
            self._codes[name] = len(self._model.operatorCodes)
            self._model.operatorCodes.append(
                self._schema.OperatorCodeT(min(kind, 127), None, VERSIONS[name], kind)
            )
        return self._codes[name]

    def _drop_unread(self, graph):
        """Takes the buffers of tensors that no operator of a graph reads."""
        read = {number for operator in graph.operators for number in operator.inputs}
        read |= {*graph.inputs, *graph.outputs}
        for number, tensor in enumerate(graph.tensors):
            if number not in read and tensor.buffer in self.replaced():
                tensor.buffer = 0


def _reads_rows(gather, table):
    """Whether a GATHER reads rows of a table, and the same for each example."""
    options = gather.builtinOptions
    return options.axis == len(table.shape) - 2 and not options.batchDims
