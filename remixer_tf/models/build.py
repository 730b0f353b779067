"""Making a model, for training and for everything after it."""

import keras
from keras.src.backend.common import global_state

from remixer_tf.errors import UserError
from remixer_tf.layers.checks import check_factories

DTYPE_POLICIES = ("float32", "mixed_bfloat16")


def build_model(model, dtype_policy):
    """Makes a model and all its variables.

    Args:
        model: a factory: `model()` is a `keras.Model`, `model().build()` makes all its
            variables.
        dtype_policy: str, one of `DTYPE_POLICIES`; variables are float32 under both.

    Returns:
        the model.

    Raises:
        ValueError: an unknown dtype policy.
    """
    if dtype_policy not in DTYPE_POLICIES:
        raise UserError(
            f"dtype_policy must be one of {DTYPE_POLICIES}. Received: {dtype_policy!r}"
        )
    check_factories(model=model)
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(dtype_policy)
    try:
        model = model()
        if not model.built:
            model.build()
    finally:
        keras.config.set_dtype_policy(previous)
    return model


def declare(make):
    """Returns what `make()` builds, its variables without values, to count them."""
    # Keras notes those without values, and makes them in the next stateless call.
    waiting = global_state.get_global_attribute("uninitialized_variables") or []
    before = [*waiting]
    try:
        with keras.StatelessScope(initialize_variables=False):
            return make()
    finally:
        global_state.set_global_attribute("uninitialized_variables", before)
