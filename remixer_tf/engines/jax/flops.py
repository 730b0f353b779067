"""FLOPs and memory of a compiled program."""

import math
import re

from jax import numpy as jnp
from jax.extend import core

from remixer_tf.engines.products import Products

# Arithmetic on floats that has a formula, see `product_flops`.
_POINTWISE = set(
    "abs acos acosh add add_any asin asinh atan atan2 atanh ceil cos cosh div erf "
    "erf_inv erfc exp exp2 expm1 floor integer_pow log log1p logistic max min mul neg "
    "pow rem round rsqrt sign sin sinh sqrt square sub tan tanh".split()
)
_REDUCTIONS = set(
    "cummax cummin cumprod cumsum pmax pmin psum psum_invariant reduce_max reduce_min "
    "reduce_prod reduce_scatter reduce_sum".split()
)
_SCATTERS = set("scatter-add scatter-max scatter-min scatter-mul scatter-sub".split())
_FORMULAS = _POINTWISE | _REDUCTIONS | _SCATTERS | {"clamp", "fft"}

# Primitives that copy, choose, sort, round or draw numbers, or send them.
_MOVES = set(
    "all_gather all_gather_invariant all_gather_reduced all_to_all approx_top_k "
    "bitcast_convert_type broadcast_in_dim complex concatenate conj "
    "convert_element_type copy copy_p device_put dynamic_slice dynamic_update_slice "
    "empty gather get imag iota layout_constraint name optimization_barrier pad "
    "pbroadcast ppermute pvary ragged_all_to_all random_gamma real reduce_precision "
    "reshape reshard rev rng_uniform scatter select_n sharding_constraint slice sort "
    "split squeeze stack stop_gradient swap tile top_k transpose unstack "
    "zeros_like".split()
)
# Primitives whose work is that of the functions that they call; `linear` is that of
# `kernels.linear_operation`.
_CALLS = set(
    "call checkpoint closed_call composite cond core_call custom_jvp_call custom_lin "
    "custom_partitioning custom_vjp_call custom_vjp_call_jaxpr custom_vmap_call jit "
    "linear linear_call pjit remat2 run_state scan shard_map while".split()
)
# They multiply matrices or hide what they compute, whatever they return.
_HEAVY = re.compile("fft|.*callback|.*_call")


def product_flops(jaxpr):
    """Returns the `Products` of a jaxpr.

    A multiply-add counts 2, and 8 of complex numbers. The rest is counted as on
    TensorFlow. Pointwise arithmetic counts one for each output element, and a reduction
    or scattered sum one for each input element. A Fourier transform of n numbers counts
    5 n log2 n, half of it if they are real. A scan's body counts as often as it runs,
    another loop's body once. The branch with the most products counts, and not the
    others.

    A primitive of floats that has no formula here is named, unless it only moves
    numbers. So is a loop of unknown length, and arithmetic on complex numbers.
    """
    total, rest, uncounted = 0, 0, set()
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name == "dot_general":
            total += _product(equation)
        elif name == "conv_general_dilated":
            total += _convolution(equation)
        elif name in _CALLS:
            called = _called(equation)
            total += called.flops
            rest += called.rest
            uncounted.update(called.uncounted)
        else:
            rest += _rest(equation)
            uncounted.update(_without_formula(equation))
    return Products(total, tuple(sorted(uncounted)), rest)


def _called(equation):
    """The `Products` of what an equation calls."""
    name = equation.primitive.name
    inner = [*map(product_flops, core.jaxprs_in_params(equation.params))]
    uncounted = {each for products in inner for each in products.uncounted}
    if name == "cond":
        inner = [max(inner, key=lambda products: (products.flops, products.rest))]
    repeats = equation.params["length"] if name == "scan" else 1
    total = repeats * sum(products.flops for products in inner)
    rest = repeats * sum(products.rest for products in inner)
    if name == "while" and (total or rest):
        uncounted.add("while")
    return Products(total, tuple(uncounted), rest)


def _without_formula(equation):
    """The names of an equation that has no formula, or whose products do not count."""
    name = equation.primitive.name
    if _HEAVY.fullmatch(name):
        yield name
    elif name not in _MOVES:
        if any(map(_is_complex, (*equation.invars, *equation.outvars))):
            yield f"complex {name}"
        elif name not in _FORMULAS and any(map(_is_float, equation.outvars)):
            yield name


def _product(equation):
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    output = equation.outvars[0]
    return _each(output) * math.prod(left[a] for a in contracted) * _size(output)


def _each(output):
    """FLOPs of a multiply-add: of complex numbers four products and four sums."""
    return 8 if _is_complex(output) else 2


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
    total = _each(equation.outvars[0]) * output[batch] * output[features] * channels
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
    if not _is_float(output) or any(map(_is_complex, equation.invars)):
        return 0
    if name in _REDUCTIONS:
        return sum(map(_size, equation.invars))
    if name in _SCATTERS:
        return _size(equation.invars[2])  # the updates
    if name == "clamp":  # a minimum and a maximum
        return 2 * _size(output)
    return _size(output) if name in _POINTWISE else 0


def _is_float(variable):
    return _is_a(variable, jnp.floating)


def _is_complex(variable):
    return _is_a(variable, jnp.complexfloating)


def _is_a(variable, kind):
    dtype = getattr(getattr(variable, "aval", None), "dtype", None)  # Tokens have none.
    return dtype is not None and jnp.issubdtype(dtype, kind)


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
