"""FLOPs and memory of a compiled program, and the devices' matmul rate."""

import functools
import math

import jax
from jax.extend import core

from remixer_tf.engines.device_rates import matmul_sizes, measure_products


def product_flops(jaxpr):
    """FLOPs of the matrix products and convolutions of a jaxpr: 2 a multiply-add.

    The body of a scan counts as often as it runs, that of another loop once.
    """
    total = 0
    for equation in jaxpr.eqns:
        output = equation.outvars[0].aval.shape if equation.outvars else ()
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            left = equation.invars[0].aval.shape
            total += 2 * math.prod(left[a] for a in contracted) * math.prod(output)
        elif equation.primitive.name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            features = equation.params["dimension_numbers"].rhs_spec[0]
            total += 2 * math.prod(output) * math.prod(kernel) // kernel[features]
        repeats = equation.params.get("length", 1)  # of a scan
        for inner in core.jaxprs_in_params(equation.params):
            total += repeats * product_flops(inner)
    return total


def program_bytes(compiled):
    """Returns the bytes that a compiled program holds on a device at once."""
    memory = compiled.memory_analysis()
    return (
        memory.argument_size_in_bytes
        + memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
    )


@functools.cache
def matmul_rate(dtype, seconds=0.5):
    """Returns the FLOP/s of one device, measured once; see `measure_products`."""
    size, chain = matmul_sizes(jax.default_backend() != "cpu")
    a = jax.random.normal(jax.random.key(0), (size, size)) * size**-0.5
    a = a.astype(dtype)
    products = jax.jit(lambda a: jax.lax.fori_loop(0, chain, lambda _, x: a @ x, a))
    return measure_products(
        lambda: jax.block_until_ready(products(a)), size, chain, seconds
    )
