"""Making a model, for training and for everything after it."""

import copy
import math
import os
import random

import keras
import numpy as np
from keras.src.backend.common import global_state

from remixer_tf.errors import UserError, check_factories

DTYPE_POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def build_model(model, dtype_policy):
    """Makes a model and all its variables, and returns it.

    Args:
        model: a factory: `model()` is a `keras.Model`, `model().build()` makes all its
            variables.
        dtype_policy: str, one of `DTYPE_POLICIES`, else a ValueError; variables are
            float32 under all.
    """
    if dtype_policy not in DTYPE_POLICIES:
        raise UserError(
            f"dtype_policy must be one of {DTYPE_POLICIES}: small updates would round "
            f"away from weights of 16 bits. Received: {dtype_policy!r}"
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
    """Returns what `make()` builds, its variables without values, to count them.

    Layers made later get the names and initial values that they have without this call.
    """
    # Keras notes variables without values, to make them in the next stateless call.
    notes = {"uninitialized_variables": [], "object_name_uids": None}
    for name, default in notes.items():
        value = global_state.get_global_attribute(name, default)
        notes[name] = copy.copy(value)
    seeds = random.getstate()
    try:
        with keras.StatelessScope(initialize_variables=False):
            return make()
    finally:
        random.setstate(seeds)
        for name, value in notes.items():
            global_state.set_global_attribute(name, value)


def machine_memory():
    """Returns the bytes of this machine's memory, or None if it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None


def check_memory(make, limit):
    """Raises a UserError if a model's variables need more bytes than `limit`.

    `make()` returns the built model, which is only declared here. A limit of None
    checks nothing.
    """
    if limit is None:
        return
    model = declare(make)
    sizes = [(math.prod(v.shape), np.dtype(v.dtype).itemsize) for v in model.variables]
    needed = sum(math.prod(size) for size in sizes)
    if needed > limit:
        raise UserError(
            f"{model.name} has {sum(n for n, _ in sizes):,} parameters, which need "
            f"{needed / 1e9:,.1f} GB of memory. There are {limit / 1e9:,.1f} GB. "
            "Choose smaller sizes."
        )
