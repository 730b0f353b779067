"""Matmul FLOPs and memory of a traced function, and the machine's matmul rate."""

import math
import time

import tensorflow as tf


def matmul_flops(concrete_function):
    """Counts 2 m n k of every matrix product in a traced function.

    Bodies of loops count once, so trace one step per call. Shapes must be static.
    """
    return _graph_flops(concrete_function.graph)


def _graph_flops(graph):
    total = 0
    for op in graph.get_operations():
        total += _op_flops(op)
        for attribute in op.op_def.attr:
            if attribute.type == "func":
                function = graph._get_function(op.get_attr(attribute.name).name)
                total += _graph_flops(function.graph)
    return total


def _op_flops(op):
    if op.type == "MatMul":
        transposes = op.get_attr("transpose_a"), op.get_attr("transpose_b")
    elif op.type == "BatchMatMulV2":
        transposes = op.get_attr("adj_x"), op.get_attr("adj_y")
    elif op.type == "Einsum":
        labels = op.get_attr("equation").decode().split("->")[0].split(",")
        sizes = {}
        for letters, operand in zip(labels, op.inputs, strict=True):
            sizes.update(zip(letters, operand.shape.as_list(), strict=True))
        return 2 * math.prod(sizes.values())
    else:
        return 0
    inner = op.inputs[0].shape[-2 if transposes[0] else -1]
    return 2 * math.prod(op.outputs[0].shape.as_list()) * inner


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


def matmul_rate(size=1024, seconds=2.0, dtype="float32"):
    """FLOP/s of a square product: the best of as many as fit in the time."""
    a = tf.cast(tf.random.normal((size, size)), dtype)
    product = tf.function(lambda a: tf.matmul(a, a))
    product(a)
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        product(a).numpy()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
