"""A function whose intermediate values are computed again for the gradient."""

import keras

# "full" computes everything again. "cheap" keeps the products of an input with a matrix
# of weights, which cost the most.
RECOMPUTED = {"tensorflow": ("full",), "jax": ("full", "cheap")}


def recompute(function, what):
    """Returns the function, which keeps only its arguments for the gradient.

    It is `keras.remat`, and for "cheap" JAX' `dots_with_no_batch_dims_saveable`. Both
    save memory and cost time, see docs/results/memory.md.

    `function` takes and returns tensors; TensorFlow calls it a second time. `what` is a
    str of `RECOMPUTED`.
    """
    if what == "full":
        return keras.remat(function)
    import jax

    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    return jax.checkpoint(function, policy=policy)
