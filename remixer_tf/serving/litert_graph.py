"""Changes to graphs of LiteRT: weights in 8 bits."""

import copy

import numpy as np

from remixer_tf.serving import int8

# The versions of operators that take 8 bits, so that older runtimes refuse the file.
VERSIONS = {"FULLY_CONNECTED": 12, "DEQUANTIZE": 5, "GATHER": 2, "CAST": 1, "MUL": 1}


def quantize(content, matrices, weight_only=False):
    """Stores weights in 8 bits, in all graphs of a file, the bodies of loops included.

    A product of positions with a kernel rounds each position's numbers to 8 bits while
    it runs, and multiplies integers. With `weight_only` the kernel becomes float32 when
    the file is loaded. A row of an embedding is read, and multiplied by its scale.

    Args:
        content: bytes of a file with float32 weights.
        matrices: `int8.Matrices`, the constants to store so. A product's constant is
            its second factor; others stay.
        weight_only: bool.

    Returns:
        bytes of the new file.
    """
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(content, 0)
    editor = _Editor(schema, model, matrices, weight_only)
    for graph in model.subgraphs:
        editor.rewrite(graph)
        for tensor in graph.tensors:
            tensor.name = None  # Long, and nothing reads it.
    read = {tensor.buffer for graph in model.subgraphs for tensor in graph.tensors}
    for number in editor.replaced() - read:
        model.buffers[number].data = None
    builder = flatbuffers.Builder(len(content) // 2)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


class _Editor:
    """Rewrites the graphs of one file.

    Attributes:
        buffers: dictionary from a float buffer and its shape to the buffers of integers
            and of scales, or None: matrices of equal bytes may share a buffer.
    """

    def __init__(self, schema, model, matrices, weight_only):
        self._schema, self._model = schema, model
        self._matrices, self._weight_only = matrices, weight_only
        self._codes = {}
        self.buffers = {}

    def rewrite(self, graph):
        kinds = self._schema.BuiltinOperator
        rewrites = {kinds.FULLY_CONNECTED: self._product, kinds.GATHER: self._rows}
        operators = []
        for operator in graph.operators:
            code = self._model.operatorCodes[operator.opcodeIndex]
            kind = max(code.builtinCode, code.deprecatedBuiltinCode)
            place = {kinds.FULLY_CONNECTED: 1, kinds.GATHER: 0}.get(kind)
            if kind == kinds.GATHER and _reads_no_rows(operator.builtinOptions):
                place = None
            stored = None if place is None else self._store(graph, operator, place)
            if stored is None:
                operators.append(operator)
            else:
                operators += rewrites[kind](graph, operator, *stored)
        graph.operators = operators
        self._drop_unread(graph)

    def _store(self, graph, operator, place):
        """Returns the buffers of a constant in 8 bits and its scales, or None."""
        tensor = graph.tensors[operator.inputs[place]]
        data = self._model.buffers[tensor.buffer].data
        shape = () if tensor.shape is None else tuple(tensor.shape)
        is_float = tensor.type == self._schema.TensorType.FLOAT32
        if data is None or not is_float or len(shape) != 2:
            return None
        key = tensor.buffer, shape
        if key not in self.buffers:
            array = np.asarray(data, "uint8").view("<f4").reshape(shape)
            self.buffers[key] = None
            if array in self._matrices:
                # Rows have a scale each: outputs of a kernel, tokens of an embedding.
                eight = int8.quantize(array, axis=1)
                self.buffers[key] = [self._add_buffer(x) for x in eight]
        return self.buffers[key]

    def replaced(self):
        """Returns the set of float buffers that have integers."""
        return {buffer for (buffer, _), eight in self.buffers.items() if eight}

    def _product(self, graph, operator, integers, scale):
        """FULLY_CONNECTED, of a kernel `[d_out, d_in]`."""
        kernel = operator.inputs[1]
        scales = self._model.buffers[scale].data.view("<f4")
        quantization = self._schema.QuantizationParametersT(
            scale=scales, zeroPoint=np.zeros(len(scales), "int64"), quantizedDimension=0
        )
        eight = self._add_tensor(
            graph, kernel, "INT8", buffer=integers, quantization=quantization
        )
        if self._weight_only:
            floats = self._add_tensor(graph, kernel, "FLOAT32")
            yield self._operator("DEQUANTIZE", [eight], floats)
            eight = floats
        else:
            operator.opcodeIndex = self._code("FULLY_CONNECTED")
            operator.builtinOptions.asymmetricQuantizeInputs = True
        operator.inputs = [operator.inputs[0], eight, *operator.inputs[2:]]
        yield operator

    def _rows(self, graph, operator, integers, scale):
        """GATHER, of a table `[ids, channels]`: rows, and their scales."""
        (table, ids), (y,) = operator.inputs, operator.outputs
        thin = {"shape": [*graph.tensors[y].shape[:-1], 1]}
        column = {"shape": [graph.tensors[table].shape[0], 1]}
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

    def _add_buffer(self, array):
        data = np.ascontiguousarray(array).reshape(-1).view("uint8")
        self._model.buffers.append(self._schema.BufferT(data))
        return len(self._model.buffers) - 1

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


def _reads_no_rows(gather):
    """Whether a GATHER reads columns, or other numbers for each example of a batch."""
    return bool(gather.axis or gather.batchDims)
