"""FLOPs and memory of a traced function."""

import math
from typing import NamedTuple

import tensorflow as tf


class OpFlops(NamedTuple):
    """FLOPs of one operation of a traced function."""

    name: str  # In a called function, the caller's name comes first.
    matmul: int  # of a matrix product or convolution: 2 for each multiply-add
    rest: int  # of other arithmetic on floats, see `op_flops`


def op_flops(concrete_function):
    """Returns the `OpFlops` of every operation that counts, a list.

    Matrix products and convolutions count 2 m n k. Pointwise arithmetic on floats
    counts one for each output element, a reduction one for each input element, and a
    softmax five for each: max, difference, exponential, sum, quotient. An FFT of n real
    numbers, there or back, counts 2.5 n log2 n. The body of a loop counts as often as
    its maximum says, and once if that is unknown. Unknown shapes count nothing.
    """
    return list(_op_flops(concrete_function, ""))


def matmul_flops(concrete_function):
    """Returns the FLOPs of matrix products in a traced function; see `op_flops`."""
    return sum(op.matmul for op in op_flops(concrete_function))


def _op_flops(function, prefix):
    for op in function.graph.get_operations():
        matmul = _matmul_flops(op)
        rest = 0 if matmul else _rest_flops(op)
        if matmul or rest:
            yield OpFlops(prefix + op.name, matmul, rest)
        times = _iterations(op)
        for called in _called(op):
            for inner in _op_flops(called, f"{prefix}{op.name}/"):
                yield OpFlops(inner.name, times * inner.matmul, times * inner.rest)


_FUNCTIONS = {}  # from an operation's type to its attributes that are functions


def _called(op):
    """The functions that an operation calls."""
    if op.type not in _FUNCTIONS:
        attributes = [attr.name for attr in op.op_def.attr if attr.type == "func"]
        _FUNCTIONS[op.type] = attributes
    for name in _FUNCTIONS[op.type]:
        yield op.graph._get_function(op.get_attr(name).name)


def _iterations(op):
    """The most turns of a loop; 1 if that is unknown or it is no loop."""
    if op.type not in ("While", "StatelessWhile"):
        return 1
    maximum = tf.get_static_value(op.inputs[1])  # -1 for none
    return max(1, int(maximum)) if maximum is not None and maximum.ndim == 0 else 1


def _matmul_flops(op):
    if op.type == "MatMul":
        transposes = op.get_attr("transpose_a"), op.get_attr("transpose_b")
    elif op.type == "BatchMatMulV2":
        transposes = op.get_attr("adj_x"), op.get_attr("adj_y")
    elif op.type == "Einsum":
        labels = op.get_attr("equation").decode().split("->")[0].split(",")
        sizes = {}
        for letters, operand in zip(labels, op.inputs, strict=True):
            sizes.update(zip(letters, operand.shape.as_list(), strict=True))
        return 2 * math.prod(sizes.values()) if len(labels) > 1 else 0
    elif op.type == "Conv2D":
        kernel = op.inputs[1].shape.as_list()  # [height, width, in, out]
        return 2 * math.prod(op.outputs[0].shape.as_list()) * math.prod(kernel[:-1])
    else:
        return 0
    inner = op.inputs[0].shape[-2 if transposes[0] else -1]
    return 2 * math.prod(op.outputs[0].shape.as_list()) * inner


_POINTWISE = set(
    "Abs Add AddV2 BiasAdd Cos Div Elu Erf Erfc Exp Expm1 LeakyRelu Log Log1p Maximum "
    "Minimum Mul Neg Pow RealDiv Reciprocal Relu Relu6 Rsqrt Selu Sigmoid Sign Sin "
    "Softplus Softsign Sqrt Square SquaredDifference Sub Tanh".split()
)
_REDUCTIONS = {"Max", "Mean", "Min", "Prod", "Sum"}
_SOFTMAXES = {"LogSoftmax", "Softmax"}


def _rest_flops(op):
    if op.type in ("RFFT", "IRFFT"):
        numbers = (op.inputs if op.type == "RFFT" else op.outputs)[0].shape
        if not numbers.is_fully_defined():
            return 0
        return int(2.5 * numbers.num_elements() * math.log2(numbers[-1]))
    if not op.outputs or not op.outputs[0].dtype.is_floating:
        return 0
    if op.type in _POINTWISE:
        return op.outputs[0].shape.num_elements()
    if op.type in _REDUCTIONS:
        return op.inputs[0].shape.num_elements()
    if op.type in _SOFTMAXES:
        return 5 * op.outputs[0].shape.num_elements()
    return 0


def peak_bytes(concrete_function):
    """The most bytes of tensors alive at once, if the ops run in their order.

    A called function adds its own peak while it runs, and so does one turn of a loop.
    Variables are handles and do not count. Unknown shapes count as 0.
    """
    operations = concrete_function.graph.get_operations()
    outputs = {tensor.ref() for tensor in concrete_function.graph.outputs}
    last_use = {}
    for i, op in enumerate(operations):
        for tensor in op.inputs:
            last_use[tensor.ref()] = i
    dying = {}
    for ref, i in last_use.items():
        if ref not in outputs:
            dying.setdefault(i, []).append(ref.deref())
    alive = peak = 0
    for i, op in enumerate(operations):
        inner = max(map(peak_bytes, _called(op)), default=0)
        if op.type not in _WITHOUT_MEMORY:
            alive += sum(_bytes(t) for t in op.outputs if t.ref() in last_use)
            peak = max(peak, alive + inner)
        for tensor in dying.get(i, ()):
            if tensor.op.type not in _WITHOUT_MEMORY:
                alive -= _bytes(tensor)
    return peak


# Their outputs are other tensors' memory.
_WITHOUT_MEMORY = set(
    "Placeholder ReadVariableOp Reshape Identity ExpandDims Squeeze".split()
)


def _bytes(tensor):
    size = tensor.dtype.size or 0
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or size == 0:
        return 0
    return size * (tensor.shape.num_elements() or 0)


def variable_bytes(variables):
    """Returns the bytes that variables take."""
    return sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)
