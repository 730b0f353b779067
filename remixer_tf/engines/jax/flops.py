"""FLOPs and memory of a compiled program."""

import math

from jax.extend import core


def product_flops(jaxpr):
    """Returns the FLOPs of a jaxpr's matrix products and convolutions.

    A multiply-add counts 2. A scan's body counts as often as it runs, another loop's
    body once.
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
