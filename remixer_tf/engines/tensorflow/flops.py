"""FLOPs and memory of a traced function, and the machine's matmul rate."""

import functools
import math
from typing import NamedTuple

import tensorflow as tf

from remixer_tf.engines.device_rates import matmul_sizes, measure_products


class OpFlops(NamedTuple):
    """FLOPs of one operation of a traced function.

    Attributes:
        name: str, the operation's; inside a called function it follows the caller's.
        matmul: int, of a matrix product or convolution: 2 for each multiply-add.
        rest: int, of other arithmetic on floats, see `op_flops`.
    """

    name: str
    matmul: int
    rest: int


def op_flops(concrete_function):
    """Counts the FLOPs of every operation from its shapes, static for the products.

    Matrix products and convolutions count 2 m n k. Of the rest, pointwise arithmetic
    (sums, products, comparisons such as max, exponentials, roots, activations) counts
    one for each output element, a reduction (sum, mean, max) one for each input
    element, and a softmax five for each: max, difference, exponential, sum, quotient.
    An FFT of n real numbers, there or back, counts 2.5 n log2 n. Moving, casting and
    selecting are none, nor is arithmetic on integers. The body of a loop counts as
    often as its maximum says, and once if that is unknown. The rest of an operation
    whose shape is unknown counts nothing.

    Returns:
        list of `OpFlops`, without those that count nothing.
    """
    return list(_graph_flops(concrete_function.graph, ""))


def matmul_flops(concrete_function):
    """Returns the FLOPs of matrix products in a traced function; see `op_flops`."""
    return sum(op.matmul for op in op_flops(concrete_function))


def _graph_flops(graph, prefix):
    for op in graph.get_operations():
        matmul = _matmul_flops(op)
        rest = 0 if matmul else _rest_flops(op)
        if matmul or rest:
            yield OpFlops(prefix + op.name, matmul, rest)
        times = _iterations(op)
        for attribute in op.op_def.attr:
            if attribute.type == "func":
                function = graph._get_function(op.get_attr(attribute.name).name)
                for inner in _graph_flops(function.graph, f"{prefix}{op.name}/"):
                    yield OpFlops(inner.name, times * inner.matmul, times * inner.rest)


def _iterations(op):
    """How often a loop runs at most; 1 if that is unknown, or no loop."""
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
    """Bytes of the tensors alive at once, at most, if the ops ran in their order.

    A called function counts with its own peak while it runs; a loop's body once.
    Variables are handles and do not count. Shapes that are unknown count as 0.
    """
    return _graph_peak(concrete_function.graph)


def _graph_peak(graph):
    operations = graph.get_operations()
    outputs = {tensor.ref() for tensor in graph.outputs}
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
        inner = 0
        for attribute in op.op_def.attr:
            if attribute.type == "func":
                function = graph._get_function(op.get_attr(attribute.name).name)
                inner = max(inner, _graph_peak(function.graph))
        if op.type not in _WITHOUT_MEMORY:
            alive += sum(_bytes(t) for t in op.outputs if t.ref() in last_use)
            peak = max(peak, alive + inner)
        for tensor in dying.get(i, ()):
            if tensor.op.type not in _WITHOUT_MEMORY:
                alive -= _bytes(tensor)
    return peak


# Their outputs are other tensors' memory.
_WITHOUT_MEMORY = {
    "Placeholder",
    "ReadVariableOp",
    "Reshape",
    "Identity",
    "ExpandDims",
    "Squeeze",
}


def _bytes(tensor):
    size = tensor.dtype.size or 0
    if tensor.dtype in (tf.resource, tf.variant, tf.string) or size == 0:
        return 0
    return size * (tensor.shape.num_elements() or 0)


def variable_bytes(variables):
    """Returns the bytes that variables take."""
    return sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)


@functools.cache
def matmul_rate(seconds=2.0, dtype="float32"):
    """Returns the FLOP/s of one device, measured once; see `measure_products`."""
    size, chain = matmul_sizes(bool(tf.config.list_logical_devices("GPU")))
    a = tf.cast(tf.random.normal((size, size), stddev=size**-0.5), dtype)

    @tf.function
    def products(a):
        x = a
        for _ in range(chain):
            x = tf.matmul(a, x)
        return x[0, 0]  # Only one number comes back from the device.

    return measure_products(lambda: products(a).numpy(), size, chain, seconds)
