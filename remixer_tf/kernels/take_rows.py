"""Rows by their index, with a gradient that gathers."""

import keras
from keras import ops


def reference(x, index):
    """See `take_rows`: its gradient scatters."""
    return ops.take(x, index, axis=0)


def take_rows(x, index, inverse, valid=None):
    """`x[index]`, `[m, d]`, whose gradient is a gather too.

    Chosen for: all devices. The reason is no gain in time: a scatter adds in no fixed
    order on GPUs, where a run would no longer repeat bit by bit.

    Args:
        x: `[n, d]`.
        index: int32 `[m]`.
        inverse: int32 `[n, r]`, the places where each row of x stands.
        valid: bool `[n, r]`, False for places where it does not, or has no gradient.
            None if all are valid.
    """
    places = [inverse] if valid is None else [inverse, valid]

    def take(x, index, *places):
        return reference(x, index)

    def gradient(upstream, x, index, inverse, valid=None):
        taken = ops.take(upstream, inverse, axis=0)
        if valid is not None:
            taken = ops.where(valid[:, :, None], taken, 0)
        return ops.sum(taken, axis=1)

    if keras.backend.backend() == "jax":
        from remixer_tf.kernels.linear_operation import linear_operation

        return linear_operation(take, gradient)(x, index, *places)

    @ops.custom_gradient
    def taken(x):
        def of_x(*args, upstream=None):
            upstream = args[0] if upstream is None else upstream
            return gradient(upstream, x, index, *places)

        return reference(x, index), of_x

    return taken(x)
