"""FLOPs and memory of a compiled program."""

import math
import re

from jax import numpy as jnp
from jax.extend import core

from remixer_tf.engines.products import Products

_POINTWISE = set(
    "abs add add_any cos div erf erf_inv erfc exp exp2 expm1 integer_pow log log1p "
    "logistic max min mul neg pow rsqrt sign sin sqrt square sub tan tanh".split()
)
_REDUCTIONS = set("cumprod cumsum reduce_max reduce_min reduce_prod reduce_sum".split())

# Primitives without a formula below that multiply matrices or hide what they compute.
# They are named wherever FLOPs are shown.
_UNCOUNTED = re.compile(
    r"fft|ragged_dot.*|scaled_.*|cholesky.*|lu|qr|geqrf|geqp3|householder_product|ormqr"
    r"|eigh?|svd|schur|hessenberg|tridiagonal.*|triangular_solve|.*attention.*"
    r"|.*callback|.*_call"
)


def product_flops(jaxpr):
    """Returns the `Products` of a jaxpr.

    A multiply-add counts 2. The rest is counted as on TensorFlow: one for each output
    element of pointwise arithmetic and for each input element of a reduction, and
    5 n log2 n for a Fourier transform of n numbers, half of it if they are real. A
    scan's body counts as often as it runs, another loop's body once. The branch with
    the most products counts, and not the others.
    """
    total, rest, uncounted = 0, 0, set()
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            total += _product(equation)
        elif name == "conv_general_dilated":
            total += _convolution(equation)
        else:
            rest += _rest(equation)
        inner = [*map(product_flops, core.jaxprs_in_params(equation.params))]
        if name == "pallas_call" or (_UNCOUNTED.fullmatch(name) and not inner):
            uncounted.add(name)
        if name == "cond":
            inner = [max(inner, key=lambda products: products.flops)]
        repeats = equation.params.get("length", 1)  # of a scan
        for products in inner:
            total += repeats * products.flops
            rest += repeats * products.rest
            uncounted.update(products.uncounted)
            if name == "while" and products.flops:
                uncounted.add(name)
    return Products(total, tuple(sorted(uncounted)), rest)


def _product(equation):
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * math.prod(left[a] for a in contracted) * _size(equation.outvars[0])


def _convolution(equation):
    """Products of a convolution, or of one that is a gradient.

    Along an axis, each multiplication joins a place of the input, one of the kernel and
    one of the output. Two of the places determine the third. The two shortest axes thus
    bound the number of multiplications. The longest axis of a gradient, or of a
    transposed convolution, has holes or margins of zeros.
    """
    left, kernel, output = (v.aval.shape for v in (*equation.invars, *equation.outvars))
    numbers = equation.params["dimension_numbers"]
    batch, features, *axes = numbers.out_spec
    channels = kernel[numbers.rhs_spec[1]]
    total = 2 * output[batch] * output[features] * channels
    for i, j, k in zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], axes, strict=True):
        total *= math.prod(sorted((left[i], kernel[j], output[k]))[:2])
    return total


def _rest(equation):
    name = equation.primitive.name
    output = next(iter(equation.outvars), None)  # An assertion has none.
    if name == "fft":
        kind, lengths = (equation.params[x] for x in ("fft_type", "fft_lengths"))
        numbers = output if kind.name == "IRFFT" else equation.invars[0]
        each = 2.5 if "R" in kind.name else 5
        return int(each * _size(numbers) * math.log2(math.prod(lengths)))
    if name in _REDUCTIONS:
        return _size(equation.invars[0]) * _is_float(output)
    return _size(output) * _is_float(output) if name in _POINTWISE else 0


def _is_float(variable):
    return jnp.issubdtype(variable.aval.dtype, jnp.floating)


def _size(variable):
    return math.prod(variable.aval.shape)


def program_bytes(compiled):
    """Returns the bytes that a compiled program holds on a device at once."""
    memory = compiled.memory_analysis()
    return (
        memory.argument_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
    )
