"""Matmul FLOPs of a traced TensorFlow function, and the machine's matmul rate."""

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


def matmul_rate(size=1024, seconds=2.0):
    """FLOP/s of a float32 square product: the best of as many as fit in the time."""
    a = tf.random.normal((size, size))
    product = tf.function(lambda a: tf.matmul(a, a))
    product(a)
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        product(a).numpy()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
