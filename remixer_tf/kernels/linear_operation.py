"""Operations on JAX that are linear in their operands, with transposes of their own.

The tool of the kernels that write their gradients out. JAX only.
"""

import jax
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from keras import ops


def linear_operation(function, *transposes):
    """Returns a function that JAX differentiates, forward too, and maps over batches.

    `jax.custom_vjp` has no forward mode, and `jax.custom_derivatives.linear_call` no
    rule for `jax.vmap`. Mapped functions have JAX' own gradients.

    Args:
        function: of arrays to one array. It is linear in each of the first ones.
        transposes: for each of these a function of the output's cotangent and of all
            arrays, None in that array's place, to the array's cotangent. The other
            arrays are integers.
    """

    def call(*arrays):
        arrays = [ops.convert_to_tensor(array) for array in arrays]
        jaxpr = jax.make_jaxpr(function)(*arrays)
        return _linear.bind(*arrays, jaxpr=jaxpr, transposes=transposes)

    return call


_linear = Primitive("linear")


@_linear.def_impl
def _compute(*arrays, jaxpr, transposes):
    (y,) = jaxpr_as_fun(jaxpr)(*arrays)
    return y


@_linear.def_abstract_eval
def _shape(*arrays, jaxpr, transposes):
    return jaxpr.out_avals[0]


def _jvp(arrays, tangents, **rules):
    y = _linear.bind(*arrays, **rules)
    parts = [
        _linear.bind(*arrays[:i], tangent, *arrays[i + 1 :], **rules)
        for i, tangent in enumerate(tangents)
        if not isinstance(tangent, ad.Zero)
    ]
    return y, sum(parts[1:], parts[0])


def _transpose(cotangent, *arrays, jaxpr, transposes):
    """The cotangent of the one array that is not known, None for the others."""
    known = [None if ad.is_undefined_primal(x) else x for x in arrays]
    results = [None] * len(arrays)
    (place,) = (i for i, x in enumerate(known) if x is None)
    if isinstance(cotangent, ad.Zero):
        results[place] = ad.Zero(arrays[place].aval)
    else:
        results[place] = transposes[place](cotangent, *known)
    return results


def _batch(arrays, axes, jaxpr, transposes):
    return jax.vmap(jaxpr_as_fun(jaxpr), axes)(*arrays)[0], 0


ad.primitive_jvps[_linear] = _jvp
ad.primitive_transposes[_linear] = _transpose
batching.primitive_batchers[_linear] = _batch
mlir.register_lowering(_linear, mlir.lower_fun(_compute, multiple_results=False))
